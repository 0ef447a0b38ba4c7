"""A crew's steps as shown to people: stored without secrets, truncated, and returned as records."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy.engine import Row

from crew_service.engine import usage
from crew_service.engine.crew import LONGEST_IN_STEP, LONGEST_TOLD, Step, StepDone
from crew_service.engine.printed import Printed
from crew_service.prices import Prices
from crew_service.storage.json_values import tidy
from crew_service.storage.states import State
from crew_service.times import iso

SHOWN = 2048  # bytes of the arguments and of the result
LONGEST_NAME = 200  # characters of a tool's, model's or agent's name
# Characters that would reverse adjacent text on a page.
TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
RUNNING, UNKNOWN = "running", "unknown"


def stored(step: Step, printed: Printed) -> dict[str, Any]:
    """Return a step as stored, masking the same secrets as in the execution's output."""
    arguments, is_cut = _shown(step.arguments, printed)
    result, is_cut_too = _shown(step.result, printed)
    texts = {"task_id": step.task_id, "name": step.name[:LONGEST_NAME], "agent": step.agent[:LONGEST_NAME]}
    return {
        **tidy(texts | {"arguments": arguments, "result": result}),
        "number": step.number,
        "kind": step.kind,
        "state": step.state,
        "seconds": step.seconds,
        "usage": usage.of_model(step.usage) if step.usage else None,
        "is_cut": is_cut or is_cut_too,
    }


def told_at_once(step: StepDone, printed: Printed) -> dict[str, str]:
    """Return a finished step for its receivers; mask the same secrets as in printed output, except in an answer.

    Text that was truncated at the limit may end with the beginning of a secret.
    """
    texts: dict[str, str] = tidy(vars(step))
    answer = {} if step.tool else {"result": texts.pop("result")}
    masked = {name: printed.masked(text, goes_on=len(text) == LONGEST_IN_STEP) for name, text in texts.items()}
    return masked | answer


def _shown(text: str | None, printed: Printed) -> tuple[str | None, bool]:
    if text is None:
        return None, False
    masked = printed.masked(text[:LONGEST_TOLD], goes_on=len(text) > LONGEST_TOLD)
    encoded = TURNING.sub(lambda match: f"\\u{ord(match[0]):04x}", masked).encode("utf-8", "replace")
    is_cut = len(text) > LONGEST_TOLD or len(encoded) > SHOWN
    return encoded[:SHOWN].decode(errors="ignore"), is_cut


def told(row: Row[Any], execution: Row[Any], prices: Prices) -> dict[str, Any]:
    """Return a stored step as a record.

    :param execution: its `state` and `segment`; a step started by an earlier segment is no longer running
    """
    is_here = execution.state == State.RUNNING and execution.segment == row.segment
    used = usage.of_task({row.name: row.usage}) if row.usage else None
    return {
        "number": row.number,
        "kind": row.kind,
        "name": row.name,
        "agent": row.agent,
        "state": UNKNOWN if row.state == RUNNING and not is_here else row.state,
        "started_at": iso(row.began_at),
        "seconds": row.seconds,
        "usage": prices.priced(used),
        "arguments": row.arguments,
        "result": row.result,
        "from_journal": row.from_journal,
        "cut": row.is_cut,
    }


def listed(row: Row[Any], execution: Row[Any], prices: Prices) -> dict[str, Any]:
    """Return a record that also names its task."""
    return {"task_id": row.task_id, **told(row, execution, prices)}
