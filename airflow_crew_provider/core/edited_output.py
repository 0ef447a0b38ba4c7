"""A draft that a person edits becomes the task's output, at our own crew service only. No I/O.

An edit names the draft that it was made of, so that it never replaces another one.
"""

from __future__ import annotations

import json
from typing import Any

from airflow_crew_provider.core.status_parser import json_object_in
from airflow_crew_provider.core.stored_names import EDIT_FIELD
from airflow_crew_provider.models import Json, canonical_json


def draft_in(params: Json | None) -> Any:
    """Return the draft that a form's field begins with, None without one; Airflow has stored fields in two shapes."""
    field = (params or {}).get(EDIT_FIELD)
    return field.get("value") if isinstance(field, dict) else field


def with_text_of_edit(answer: Json, draft: str | None) -> Json:
    """Return an answer in which the edited draft is a text; as it is for a form without a draft.

    Airflow's page gives None for a field that was emptied, and an object for the text of one; a program may leave the
    field out.
    """
    given = answer.get("params_input")
    if draft is None or not given:
        return answer
    left = given.get(EDIT_FIELD, draft)
    if left is None:
        left = ""
    elif isinstance(left, dict):
        left = json.dumps(left, indent=2, ensure_ascii=False)
    elif isinstance(left, str):
        left = _plain(left)
    return {**answer, "params_input": {**given, EDIT_FIELD: left}}


def is_edit(draft: str, left: str) -> bool:
    """Whether a text differs from the draft that a form began with by more than white space around it or in JSON."""
    if left.strip() == _plain(draft).strip():
        return False
    found = json_object_in(left)
    # In one form, as Python holds true and 1 for equal.
    return found is None or canonical_json(found) != canonical_json(json_object_in(draft))


def _plain(text: str) -> str:
    """A browser writes the ends of lines in its own way."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def edit_problem(draft: str, edited: str) -> str | None:
    """Return why a text cannot take the place of a draft, as the end of a sentence; None if it can."""
    if not edited.strip():
        return "the edited draft is empty"
    if json_object_in(draft) is not None and json_object_in(edited) is None:
        return "the draft is a JSON object and the edited one is not"
    return None
