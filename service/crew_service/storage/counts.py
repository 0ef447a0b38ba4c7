"""The numbers of stored executions and dead letters, counted by the database itself, without reading all rows."""

from __future__ import annotations

from sqlalchemy import delete, func, insert, select
from sqlalchemy.engine import Connection

from crew_service.storage.tables import counts
from crew_service.storage.transactions import lock_name

GIVEN_UP = "given up"  # the state under which a dead letter is counted; an execution is counted under its own
AT_ONCE = 500  # rows added up at a time
SUMS = select(counts.c.crew, counts.c.what, func.sum(counts.c.number).label("number")).group_by(
    counts.c.crew, counts.c.what
)


def stored(connection: Connection) -> dict[tuple[str, str], int]:
    """Return the number of executions by crew and state, and the number of dead letters."""
    return {(row.crew, row.what): int(row.number) for row in connection.execute(SUMS)}


def add_up(connection: Connection) -> bool:
    """Merge rows of the same counter into their sum; return False if there is nothing left to do."""
    lock_name(connection, "counts")
    some = select(counts).order_by(counts.c.id.desc()).limit(AT_ONCE)
    rows = list(connection.execute(some))
    sums: dict[tuple[str, str], int] = {}
    for row in rows:
        sums[row.crew, row.what] = sums.get((row.crew, row.what), 0) + row.number
    if len(sums) == len(rows):
        return False
    connection.execute(delete(counts).where(counts.c.id.in_([row.id for row in rows])))
    added = [{"crew": crew, "what": what, "number": number} for (crew, what), number in sums.items()]
    connection.execute(insert(counts), added)
    return True
