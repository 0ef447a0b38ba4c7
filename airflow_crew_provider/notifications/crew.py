"""Notifies people of a waiting review: the subject and a link to the form, sent by any notifier of Airflow."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from airflow.providers.common.compat.sdk import BaseNotifier

_BEGINNINGS = re.compile(r"{(?=[{%#])")


class CrewReviewNotifier(BaseNotifier):
    """Send the subject of a waiting review and the link to its form by a notifier of another provider.

    The link opens the form and answers nothing: it carries neither an option nor feedback, and no draft.

    :param send: takes the subject and the link and returns the notifier that sends them
    :param base_url: the address of Airflow's UI; by default that of its configuration, ``[api] base_url``
    """

    def __init__(self, send: Callable[[str, str], BaseNotifier], base_url: str | None = None) -> None:
        super().__init__()
        self.send = send
        self.base_url = base_url

    def notify(self, context: Any) -> None:
        """Make the notifier for this review and call it."""
        review = context["task"]
        link = review.generate_link_to_ui_from_context(context=context, base_url=self.base_url)
        self.send(_no_template(review.subject), _no_template(link))(context)


def _no_template(text: str) -> str:
    """Return text that looks the same and that Jinja leaves alone: a notifier renders what it is given.

    A crew's words, or those of whoever starts a run, could name any connection's password otherwise.
    """
    return _BEGINNINGS.sub(lambda found: found[0] + "\N{WORD JOINER}", text)
