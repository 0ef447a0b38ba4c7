"""Why an event of Airflow is not a valid answer to a review, and the notice about it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from airflow_crew_provider.core.stored_names import EDIT_FIELD, FEEDBACK_FIELD
from airflow_crew_provider.models import Json

VALIDATION = "validation"  # the ``error_type`` of an event whose answer does not fit the form
QUESTION = "**The question:**"  # how a form begins what a Flow asks
TEXTS = (FEEDBACK_FIELD, EDIT_FIELD)
JOINER = "\N{WORD JOINER}"
# The beginnings of an image, of HTML and of a footnote, which may hold anything.
_BEGINNINGS = re.compile(r"!(?=\[)|<(?=[A-Za-z/!?])|\[(?=\^)")


def parted(text: str) -> str:
    """Return text that looks the same and begins no image, no HTML and no footnote in Markdown."""
    return _BEGINNINGS.sub(lambda found: found[0] + JOINER, text)


def problem_with(event: Json, options: Sequence[str], fields: Collection[str], revise: str | None) -> str | None:
    """Return why an event of Airflow is not an answer, as the end of a sentence; None if it is one.

    :param options: the words to choose from
    :param revise: the one that needs feedback, if any does
    :param fields: the names of the form's fields
    """
    if event.get("error_type") == VALIDATION:
        return f"it does not fit the form: {code(event.get('error'))}"
    chosen, given = event.get("chosen_options") or [], event.get("params_input") or {}
    if len(chosen) != 1 or chosen[0] not in options:
        return f"it chose {_listed(chosen)} and the form has {_listed(options)}"
    if given and set(given) != set(fields):
        return f"its fields are {_listed(given)} and the form has {_listed(fields)}"
    no_text = next((name for name in TEXTS if not isinstance(given.get(name), str | None)), None)
    if no_text:
        return f"its field {code(no_text)} is no text"
    feedback = given.get(FEEDBACK_FIELD)
    if chosen[0] == revise and not (feedback or "").strip():
        return "a revision was asked for without saying what to change"
    return None


def _listed(names: Collection[Any]) -> str:
    return ", ".join(code(name) for name in list(names)[:10]) or "nothing"


def code(value: Any) -> str:
    """Format untrusted text as Markdown code on one line."""
    return "`" + parted(" ".join(str(value).split())[:100].replace("`", "'")) + "`"


def notice(who: str, problem: str) -> str:
    """Return the notice for the next question that an answer was not accepted."""
    return f"The last answer by {code(who)} was not accepted because {problem}."
