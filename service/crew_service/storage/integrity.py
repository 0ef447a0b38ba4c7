"""Handles unreadable rows: detects them by the shape of their values and ends their executions with an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from sqlalchemy import delete, update
from sqlalchemy.engine import Connection, Row

from crew_service.storage.json_values import UNREADABLE, JsonText
from crew_service.storage.states import State
from crew_service.storage.tables import dead_letters, executions, outbox, webhook_queues

ERROR = "The stored execution cannot be read, so it was ended."
MALFORMED = (TypeError, ValueError, LookupError, AttributeError)  # raised by malformed stored values
NUMBER, NONE = (int, float), type(None)
TASK = frozenset({"task_id", "output", "agent", "execution_time"})
QUESTION = frozenset({"task_id", "key", "output", "agent", "state", "rounds"})
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("segment", "writes", "completed_tasks", "tokens"), (int,)),
    **dict.fromkeys(("created_at", "due_at", "updated_at", "work_seconds"), NUMBER),
    **dict.fromkeys(("started_at", "ended_at", "counted_at", "answer_by"), (*NUMBER, NONE)),
    **dict.fromkeys(("current_task", "current_agent", "output", "error"), (str, NONE)),
    **dict.fromkeys(("meta", "webhooks", "gate", "last_task", "last_step", "limits", "trace"), (dict, NONE)),
    **dict.fromkeys(("usage", "model_usage", "open_tasks", "earlier_usage", "failure", "booked"), (dict, NONE)),
    "inputs": (dict,),
    "asked": (list,),
    **dict.fromkeys(("tasks", "files"), (list, NONE)),
}
STATES = frozenset(State)
NEEDED: dict[str, tuple[str, ...]] = {State.WAITING: ("gate",), State.COMPLETED: ("tasks", "output")}


def is_readable(row: Row[Any]) -> bool:
    """Return whether every value has the shape in which it was stored."""
    whole = all(check(value) for check, value in zip(_checks(row._fields), row, strict=True))
    return whole and all(getattr(row, name, True) is not None for name in NEEDED.get(row.state, ()))


@lru_cache
def _checks(fields: tuple[str, ...]) -> list[Callable[[Any], bool]]:
    return [_check(name) for name in fields]


def _check(name: str) -> Callable[[Any], bool]:
    if name == "state":
        return lambda value: value in STATES
    if name == "gate":
        return lambda value: value is None or is_question(value)
    if name in KINDS:
        kinds = KINDS[name]
        return lambda value: isinstance(value, kinds) or (isinstance(value, JsonText) and value.kind in kinds)
    return lambda value: value is not UNREADABLE


def is_question(stored: Any) -> bool:
    """Return whether a waiting execution's question has everything that its readers expect."""
    return isinstance(stored, dict) and stored.keys() >= QUESTION


def is_task(task: Any) -> bool:
    """Return whether a finished task has everything that its readers expect."""
    return isinstance(task, dict) and task.keys() >= TASK


def can_go_on(row: Row[Any], done: list[Any]) -> bool:
    """Return whether a claimed execution has everything that its next segment needs."""
    answered, hooks = row.gate, row.webhooks
    return (
        is_readable(row)
        and all(map(is_task, done))
        and len(done) == row.completed_tasks
        and (answered is None or ("is_approve" in answered and isinstance(answered["rounds"], list)))
        and all(isinstance(hook, dict) and "url" in hook for hook in (hooks or {}).values())
    )


def end_unreadable(connection: Connection, execution_id: str, *, now: float, claimed_by: str | None = None) -> bool:
    """End an execution with an error, without reading it; replace every value that may be the corrupt one.

    :param claimed_by: end it only while this process has it; None ends it wherever it is
    """
    empty: dict[str, Any] = {name: None for name, kinds in KINDS.items() if NONE in kinds}
    numbers = dict.fromkeys(("created_at", "due_at", "updated_at", "ended_at", "aged_from", "counted_at"), now)
    counts: dict[str, Any] = dict.fromkeys(("completed_tasks", "tokens", "writes", "work_seconds"), 0)
    values = {**empty, **numbers, **counts, "segment": executions.c.segment + 1, "inputs": {}, "asked": []}
    values |= {"state": State.FAILED, "error": ERROR, "claimed_by": None, "output_json": None}
    query = update(executions).where(executions.c.id == execution_id)
    if claimed_by is not None:
        query = query.where(executions.c.claimed_by == claimed_by)
    if connection.execute(query.values(values)).rowcount == 0:
        return False
    for table in (outbox, webhook_queues, dead_letters):
        connection.execute(delete(table).where(table.c.execution_id == execution_id))
    return True
