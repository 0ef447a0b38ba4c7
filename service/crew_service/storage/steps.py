"""What people see of calls of models and tools; each function is part of the caller's transaction.

A trigger deletes the steps of an execution with it. The end of its task, which erases what its journal holds, leaves
them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, insert, or_, select, update
from sqlalchemy.engine import Connection, Row

from crew_service.storage.tables import steps

AT_ONCE = 500  # numbers in one statement
ENDED = ("state", "seconds", "usage", "result")
# Built once: to build a statement costs several times what it costs to run it.
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
    """Add a step that begins; one that an earlier segment had begun takes its own place again."""
    if again:
        connection.execute(FORGET, {"id": execution_id, "place": step["number"]})
    connection.execute(BEGIN, {**step, "execution_id": execution_id, "from_journal": False})


def end(connection: Connection, execution_id: str, step: dict[str, Any]) -> None:
    values = {name: step[name] for name in (*ENDED, "is_cut")}
    connection.execute(END, {**values, "id": execution_id, "place": step["number"]})


def mark_replayed(connection: Connection, execution_id: str, numbers: Sequence[int]) -> None:
    """Note that the answers of these steps were taken from the journal."""
    for start in range(0, len(numbers), AT_ONCE):
        connection.execute(MARK, {"id": execution_id, "numbers": numbers[start : start + AT_ONCE]})


def newest(connection: Connection, execution_id: str, *, most: int) -> list[Row[Any]]:
    """Return the newest steps, the oldest of them first."""
    return list(connection.execute(NEWEST, {"id": execution_id, "most": most}))[::-1]


def listed(connection: Connection, execution_id: str, *, after: int, most: int) -> list[Row[Any]]:
    return list(connection.execute(LISTED, {"id": execution_id, "after": after, "most": most}))
