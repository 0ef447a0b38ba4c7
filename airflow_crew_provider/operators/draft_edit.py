"""A draft that the reviewer edits in the form: what the form says about it, and what becomes of the edited text. Pure.

Our own crew service takes the text as the output of the task. Any other gets it as the feedback of a revision.
"""

from __future__ import annotations

from typing import Any

from airflow_crew_provider.core.edited_output import is_edit, with_text_of_edit
from airflow_crew_provider.core.status_parser import json_object_in, without_fence
from airflow_crew_provider.core.stored_names import EDIT_FIELD
from airflow_crew_provider.models import Json
from airflow_crew_provider.operators.flow_question import is_of_flow
from airflow_crew_provider.operators.review_answer import SHOWN_CHARACTERS, text_of

AS_FEEDBACK = "Use this text, which the reviewer has edited, as it stands:"


def editable_text(shown: Json) -> str | None:
    """Return the text that the form gives to edit; None for the answer of a Flow, and where only a part is shown.

    JSON is in a code fence: Airflow's page shows the text of an object as "[object Object]".
    """
    if is_of_flow(shown) or shown["characters"] > SHOWN_CHARACTERS:
        return None
    text = text_of(shown["output"])
    return f"```json\n{text}\n```" if text.strip().startswith("{") and json_object_in(text) is not None else text


def read_edit(shown: Json, event: Json) -> Json:
    """Return an event in which the draft is a text, as the person left it."""
    return with_text_of_edit(event, editable_text(shown))


def edited_text(shown: Json, event: Json) -> str | None:
    """Return what the person has made of the draft; None if it is unchanged, or could not be changed."""
    draft = editable_text(shown)
    left = (event.get("params_input") or {}).get(EDIT_FIELD)
    if draft is None or not isinstance(left, str) or not is_edit(draft, left):
        return None
    return left if draft == text_of(shown["output"]) else without_fence(left)


def with_edit(review: Json, shown: Json, edited: str) -> Json:
    """Return a review with the edited text: as the task's output, or as feedback."""
    if review["is_approve"] and shown.get("takes_edited_output"):
        return {**review, "edited_output": edited}
    feedback = "\n\n".join(part for part in (review["human_feedback"].strip(), AS_FEEDBACK, edited) if part)
    return {**review, "is_approve": False, "human_feedback": feedback}


def what_an_edit_does(shown: Json, words: list[str], *, is_last: bool) -> str:
    """Return what the form says about editing, as an item of its list."""
    approve, revise = words
    if editable_text(shown) is None:
        return "* This draft cannot be edited here." if not is_of_flow(shown) else ""
    if shown.get("takes_edited_output"):
        then = (
            f"with **{approve}** your text becomes the output of the task; with **{revise}** it goes along as feedback."
        )
    elif is_last:
        then = "this service takes it as feedback for a revision only, and **in the last round none is sent**."
    else:
        then = f"this service takes it as feedback only: with **{approve}** too, the task runs again with your text."
    return f"* If you edit the text under *Draft*: {then}"


def said_of(review: Json, given: Any) -> str:
    """Return what the log says about an edited draft."""
    where = "is to become the output of the task" if "edited_output" in review else "is sent as feedback of a revision"
    return f"The draft was edited, {len(given)} characters now; the text {where}"
