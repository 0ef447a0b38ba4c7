"""Model and tool calls as people see them; each function runs in the caller's transaction.

A trigger deletes the steps together with their execution. When a task ends, its journal entries are erased, but not
its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, insert, or_, select, update
from sqlalchemy.engine import Connection, Row

from crew_service.storage.tables import steps

AT_ONCE = 500  # numbers per statement
ENDED = ("state", "seconds", "usage", "result")
# Built once: building a statement costs several times as much as running it.
THIS = (steps.c.execution_id == bindparam("id"), steps.c.number == bindparam("place"))
BEGIN = insert(steps)
FORGET = delete(steps).where(*THIS)
END = (
    update(steps)
    .where(*THIS)
    .values({**{name: bindparam(name) for name in ENDED}, "is_cut": or_(steps.c.is_cut, bindparam("is_cut"))})
)
MARK = (
    update(steps)
    .where(steps.c.execution_id == bindparam("id"), steps.c.number.in_(bindparam("numbers", expanding=True)))
    .values(from_journal=True)
)
OF_EXECUTION = select(steps).where(steps.c.execution_id == bindparam("id"))
NEWEST = OF_EXECUTION.order_by(steps.c.number.desc()).limit(bindparam("most"))
LISTED = OF_EXECUTION.where(steps.c.number > bindparam("after")).order_by(steps.c.number).limit(bindparam("most"))


def begin(connection: Connection, execution_id: str, step: dict[str, Any], *, again: bool) -> None:
    """Add a step that is starting; if an earlier segment started it, replace that row."""
    if again:
        connection.execute(FORGET, {"id": execution_id, "place": step["number"]})
    connection.execute(BEGIN, {**step, "execution_id": execution_id, "from_journal": False})


def end(connection: Connection, execution_id: str, step: dict[str, Any]) -> None:
    values = {name: step[name] for name in (*ENDED, "is_cut")}
    connection.execute(END, {**values, "id": execution_id, "place": step["number"]})


def mark_replayed(connection: Connection, execution_id: str, numbers: Sequence[int]) -> None:
    """Record that these steps were answered from the journal."""
    for start in range(0, len(numbers), AT_ONCE):
        connection.execute(MARK, {"id": execution_id, "numbers": numbers[start : start + AT_ONCE]})


def newest(connection: Connection, execution_id: str, *, most: int) -> list[Row[Any]]:
    """Return the newest steps in chronological order."""
    return list(connection.execute(NEWEST, {"id": execution_id, "most": most}))[::-1]


def listed(connection: Connection, execution_id: str, *, after: int, most: int) -> list[Row[Any]]:
    return list(connection.execute(LISTED, {"id": execution_id, "after": after, "most": most}))
