"""Answers to reviews, in the form that Airflow's REST API accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FEEDBACK = "human_feedback"  # the name of the form field


def answer_body(option: str, feedback: str) -> dict[str, Any]:
    return {"chosen_options": [option], "params_input": {FEEDBACK: feedback}}


def is_approval(option: str) -> bool:
    return option in ("approve", "publish")


def round_of(task_id: str) -> int:
    """Return the round in a task id like ``crew.round_2.review``; 1 if there is none."""
    found = re.search(r"round_(\d+)", task_id)
    return int(found[1]) if found else 1


def draft_shown(detail: Mapping[str, Any]) -> int:
    """Return the number of the draft in a form, such as 2 for ``Draft 2 on tea``; 0 if there is none."""
    found = re.search(r"^> Draft (\d+) on ", detail["body"], re.MULTILINE)
    return int(found[1]) if found else 0
