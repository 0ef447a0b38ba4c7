"""Questions in the middle of a task: how to read ``ask``, and the words that answer it. Pure functions.

``ask`` alone determines the kind: a pending execution without it has a draft or, with outcomes, a Flow's question. Only
the words in `RUNS_A_TOOL` allow a tool to run. An unreadable ``ask`` does not fail a wait, but is never approved; any
details that can be read are used.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from airflow_crew_provider.api.responses import Mask, in_one_line, unmasked
from airflow_crew_provider.api.values import handed_on, is_kept, moment, plain_object
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json

TOOL, QUESTION, UNKNOWN_OUTCOME = "tool", "question", "unknown_outcome"
UNREADABLE = "unreadable"  # replaces a kind that this release does not know
APPROVE, DENY, ANSWER, DONE, RUN_AGAIN, FAIL = "approve", "deny", "answer", "done", "run_again", "fail"
EXPIRED = "expired"  # nobody's answer, which the service gives itself at a question's deadline; never sent
# The words that answer each kind of question, and the matching ``is_approve``.
WORDS: dict[str, dict[str, bool]] = {
    TOOL: {APPROVE: True, DENY: False},
    QUESTION: {ANSWER: True},
    UNKNOWN_OUTCOME: {DONE: True, RUN_AGAIN: True, FAIL: False},
}
RUNS_A_TOOL = (APPROVE, RUN_AGAIN)
HIDDEN = "***"  # the service shows this instead of a secret
LONGEST_NAME = 200
LONGEST_METADATA = 4 * 1024  # characters of JSON
OF_FLOW = ("deadline", "metadata")  # fields that only a Flow's question has
_NUMBER = re.compile(r"#[0-9]+\Z")


def read(value: Any, mask: Mask = unmasked) -> Json | None:
    """Read the ``ask`` in a response or a record; None if there is none."""
    if value is None:
        return None
    fields: Json = value if isinstance(value, dict) else {}
    kind, number = fields.get("kind"), fields.get("number")
    earlier = fields.get("earlier_calls")
    deadline = moment(fields.get("deadline"))
    of_flow = {"deadline": deadline and deadline.isoformat(), "metadata": _metadata(fields.get("metadata"))}
    return {
        "kind": kind if isinstance(kind, str) and kind in WORDS else UNREADABLE,
        **{name: _name(fields.get(name), mask) for name in ("agent", "tool")},
        "arguments": _arguments(fields.get("arguments")),
        "number": number if type(number) is int and 0 < number < 2**63 else None,
        **({"earlier_calls": earlier} if type(earlier) is int and 0 <= earlier < 2**63 else {}),  # not every service
        **(of_flow if is_of_flow(fields) else {}),
    }


def is_of_flow(ask: Json) -> bool:
    """Whether a Flow's method asks, by ``Flow.ask``."""
    return not ask.keys().isdisjoint(OF_FLOW)


def deadline_of(ask: Json | None) -> datetime | None:
    """Return when the service answers itself, with nobody's answer; None if it does not."""
    deadline = (ask or {}).get("deadline")
    return datetime.fromisoformat(deadline) if deadline else None


def _metadata(value: Any) -> Any:
    is_small = isinstance(value, dict) and is_kept(value) and len(json.dumps(value)) <= LONGEST_METADATA
    return value if is_small else None


def _name(value: Any, mask: Mask) -> str | None:
    return (in_one_line(value, mask)[:LONGEST_NAME] or None) if isinstance(value, str) else None


def _arguments(value: Any) -> Any:
    """Return arguments for XCom: an object, or its text if XCom would change the object; None if unreadable."""
    try:
        return handed_on(plain_object(json.loads(value) if isinstance(value, str) else value, "arguments"))
    except (CrewInvalidInput, ValueError, RecursionError):
        return None


def is_answer(source: Json) -> bool:
    """Whether a review answers a question in the middle of a task.

    If the review has no ``ask``, its task id and outcome determine this.
    """
    if source.get("ask") is not None:
        return True
    crew_task_id, outcome = source.get("crew_task_id"), source.get("outcome")
    is_word = isinstance(outcome, str) and any(outcome in words for words in WORDS.values())
    return is_word and isinstance(crew_task_id, str) and _NUMBER.search(crew_task_id) is not None


def task_of(crew_task_id: str) -> str:
    """Return the task's id from a question's id, ``<task>#<number>``."""
    return _NUMBER.sub("", crew_task_id)


# --- changed arguments ---


def arguments_of(ask: Json) -> Json | None:
    """Return a tool's arguments, with secrets hidden; None if unreadable."""
    value = ask["arguments"]
    arguments = json.loads(value) if isinstance(value, str) else value
    return arguments if isinstance(arguments, dict) else None


def arguments_text(ask: Json) -> str | None:
    """Return the arguments as editable text."""
    arguments = arguments_of(ask)
    return None if arguments is None else json.dumps(arguments, indent=2, sort_keys=True, ensure_ascii=False)


def problem_with_arguments(before: Any, changed: Any) -> str | None:
    """Return why changed arguments cannot replace the shown ones, as the end of a sentence; None if they can.

    A hidden secret that is left unchanged keeps its value; the service cannot fill it in anywhere else.
    """
    if not isinstance(changed, dict):
        return "the changed arguments are not a JSON object"
    place = _misplaced(before, changed, "arguments")
    return place and f"{place} contains {HIDDEN}, which stands for a hidden value only where it was shown"


def _misplaced(original: Any, changed: Any, place: str) -> str | None:
    """Return the first place that contains a hidden value now but did not before."""
    if isinstance(changed, str):
        return place if HIDDEN in changed and changed != original else None
    if isinstance(changed, dict):
        before = original if isinstance(original, dict) else {}
        hidden = [name for name in changed if HIDDEN in name and name not in before]
        parts = [(before.get(name), each, f"{place}.{name}") for name, each in changed.items()]
        problems = [f"a name in {place}"] if hidden else []
    elif isinstance(changed, list):
        items = original if isinstance(original, list) else []
        parts = [(items[at] if at < len(items) else None, each, f"{place}[{at}]") for at, each in enumerate(changed)]
        problems = []
    else:
        return None
    return next((each for each in (*problems, *(_misplaced(*part) for part in parts)) if each), None)
