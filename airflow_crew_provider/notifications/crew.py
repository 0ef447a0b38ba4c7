"""Notifies people of a pending review: sends its subject and a link to its form through any Airflow notifier."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from airflow.providers.common.compat.sdk import BaseNotifier

_BEGINNINGS = re.compile(r"{(?=[{%#])")


class CrewReviewNotifier(BaseNotifier):
    """Send a pending review's subject and form link through another provider's notifier.

    The link only opens the form: it contains no option, feedback or draft.

    :param send: a function that takes the subject and the link and returns the notifier that sends them
    :param base_url: the URL of Airflow's UI; by default, Airflow's setting ``[api] base_url``
    """

    def __init__(self, send: Callable[[str, str], BaseNotifier], base_url: str | None = None) -> None:
        super().__init__()
        self.send = send
        self.base_url = base_url

    def notify(self, context: Any) -> None:
        """Create the notifier for this review and call it."""
        review = context["task"]
        link = review.generate_link_to_ui_from_context(context=context, base_url=self.base_url)
        self.send(_no_template(review.subject), _no_template(link))(context)


def _no_template(text: str) -> str:
    """Return text that looks the same but is not rendered by Jinja, because notifiers render their arguments.

    Otherwise, a template in text from a crew, or from the user who triggers a run, could read a connection's password.
    """
    return _BEGINNINGS.sub(lambda match: match[0] + "\N{WORD JOINER}", text)
