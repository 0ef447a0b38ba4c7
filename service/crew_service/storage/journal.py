"""Answers to model and tool calls in unfinished tasks; each function runs in the caller's transaction.

Triggers delete a task's entries when its result is stored, and an execution's entries when it completes, is stopped or
is deleted. A failed execution keeps its entries.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.engine import Connection

from crew_service.storage.tables import journal

# Built once: building a statement costs several times as much as running it.
ENTRIES = (
    select(*(column for column in journal.c if column.key not in ("execution_id", "began_at", "ended_at")))
    .where(journal.c.execution_id == bindparam("id"))
    .order_by(journal.c.number)
)
ONCE_ENTRIES = ENTRIES.where(journal.c.once)
THIS = (journal.c.execution_id == bindparam("id"), journal.c.number == bindparam("place"))
ADD = insert(journal)
ONE = select(journal.c.decision).where(*THIS)
END = update(journal).where(*THIS).values({name: bindparam(name) for name in ("ended_at", "answer")})
DECIDE = update(journal).where(*THIS).values(decision=bindparam("decision", type_=journal.c.decision.type))
BEGIN_ALLOWED = DECIDE.values(began_at=bindparam("began_at"))


def add(connection: Connection, execution_id: str, entry: dict[str, Any], *, now: float) -> None:
    """Add a call that has started, or a finished one, which has an answer."""
    row = {**entry, **_ended(entry, now), "execution_id": execution_id, "began_at": now}
    connection.execute(ADD, row)


def put(connection: Connection, execution_id: str, entry: dict[str, Any], *, now: float) -> None:
    """Store a call's answer, or that it has none because a person is being asked; add the call if it is new.

    A memory lookup is added only when it ends.
    """
    values = {"id": execution_id, "place": entry["number"], **_ended(entry, now)}
    if not connection.execute(END, values).rowcount:
        add(connection, execution_id, entry, now=now)


def decide(connection: Connection, execution_id: str, number: int, decision: dict[str, Any]) -> bool:
    """Store a person's decision on a call; arguments that were changed earlier stay changed.

    Return False if the call is gone.
    """
    row = connection.execute(ONE, {"id": execution_id, "place": number}).one_or_none()
    if row is None:
        return False
    values = {"id": execution_id, "place": number, "decision": {**(row.decision or {}), **decision}}
    connection.execute(DECIDE, values)
    return True


def carry_out(connection: Connection, execution_id: str, entry: dict[str, Any], *, now: float) -> None:
    """Start a call that a person has allowed; this uses up the permission.

    :raises LookupError: if nobody has allowed it
    """
    row = connection.execute(ONE, {"id": execution_id, "place": entry["number"]}).one_or_none()
    if row is None or "outcome" not in (row.decision or {}):
        raise LookupError("nobody has allowed this call")
    values = {"id": execution_id, "place": entry["number"], "began_at": now, "decision": entry["decision"]}
    connection.execute(BEGIN_ALLOWED, values)


def entries(connection: Connection, execution_id: str, *, only_once: bool = False) -> list[dict[str, Any]]:
    """List the entries in order; with `only_once`, those of tools that may run only once."""
    rows = connection.execute(ONCE_ENTRIES if only_once else ENTRIES, {"id": execution_id}).mappings()
    return [
        {**row, "answer": None if row["answer"] is None else bytes(row["answer"]).decode(errors="replace")}
        for row in rows
    ]


def _ended(entry: dict[str, Any], now: float) -> dict[str, Any]:
    answer: str | None = entry["answer"]
    return {"ended_at": None if answer is None else now, "answer": None if answer is None else answer.encode()}
