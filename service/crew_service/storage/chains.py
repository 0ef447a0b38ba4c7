"""Chains of executions, each continued by at most one other; each function runs in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Text, bindparam, cast, delete, func, insert, literal, null, select, true, update
from sqlalchemy.engine import Connection, Row

from crew_service.storage import queries, schema, views
from crew_service.storage.tables import executions, journal, results, steps

CONTINUED_BY = "continued_by"  # key in `failure` that replaces the data to carry over
NEXT = select(executions.c.id).where(executions.c.continued_from == bindparam("id"))
FINISHED = (
    select(results.c.task, results.c.digest)
    .where(results.c.execution_id == bindparam("id"))
    .order_by(results.c.position)
)
TAKEN = [column for column in results.c if column is not results.c.execution_id]
ENTRY = [column for column in journal.c if column not in (journal.c.execution_id, journal.c.number)]
# Values to set in steps copied from an earlier execution, which has already counted their usage.
OF_STEP = {"segment": literal(0), "usage": null(), "from_journal": true()}
OTHERS = [column for column in steps.c if column.name not in ("execution_id", "number")]
STEP = [steps.c.execution_id, steps.c.number, *OTHERS]
SHOWN = [OF_STEP.get(column.name, column) for column in OTHERS]


def last(connection: Connection, some_id: str) -> tuple[str, Row[Any]] | None:
    """Find an execution by any of its ids; return its id and the head of the last one in its chain, locked."""
    head = None if "\0" in some_id else views.head(connection, some_id)
    row = queries.locked(connection, head.id) if head else None
    while row is not None and (following := connection.execute(NEXT, {"id": row.id}).scalar()):
        row = queries.locked(connection, following)
    return (head.id, row) if head and row is not None else None


def finished(connection: Connection, execution_id: str) -> list[Row[Any]]:
    """Return the finished tasks with their digests, in order."""
    return list(connection.execute(FINISHED, {"id": execution_id}))


def take_results(connection: Connection, execution_id: str, finished: Collection[str], *, into: str) -> int:
    """Copy the finished tasks and their steps, as either execution may be deleted first; return the number of steps.

    :param finished: the ids of the finished tasks
    """
    copied = select(literal(into), *TAKEN).where(results.c.execution_id == execution_id)
    connection.execute(insert(results).from_select([results.c.execution_id, *TAKEN], copied))
    of_tasks = cast(steps.c.task_id, Text).in_([json.dumps(task) for task in finished])
    number = func.row_number().over(order_by=steps.c.number)
    query = select(literal(into), number, *SHOWN).where(steps.c.execution_id == execution_id, of_tasks)
    return connection.execute(insert(steps).from_select(STEP, query)).rowcount


def take_journal(
    connection: Connection,
    execution_id: str,
    *,
    into: str,
    refused: str | None,
    unanswered: Collection[int],
    after: int,
) -> int:
    """Move the journal and copy the displayed steps of its answered calls; return the number of entries.

    :param refused: the task that starts over; of its calls, only those to run-once tools are kept
    :param unanswered: the numbers of the calls to repeat
    :param after: the number of the previous step
    """
    mine = journal.c.execution_id == execution_id
    if refused is not None:
        of_task = cast(journal.c.task_id, Text) == json.dumps(refused)
        connection.execute(delete(journal).where(mine, of_task, journal.c.once.is_not(True)))
    if unanswered:
        again = update(journal).where(mine, journal.c.number.in_(list(unanswered)), journal.c.once.is_not(True))
        connection.execute(again.values(ended_at=None, answer=None))
    number = (func.row_number().over(order_by=journal.c.number) + after).label("place")
    moved = select(literal(into), number, *ENTRY).where(mine)
    connection.execute(insert(journal).from_select([journal.c.execution_id, journal.c.number, *ENTRY], moved))
    numbered = select(journal.c.number, number, journal.c.answer).where(mine).subquery()
    answered = (steps.c.number == numbered.c.number) & numbered.c.answer.is_not(None)
    query = select(literal(into), numbered.c.place, *SHOWN)
    query = query.join_from(steps, numbered, answered).where(steps.c.execution_id == execution_id)
    connection.execute(insert(steps).from_select(STEP, query))
    return connection.execute(delete(journal).where(mine)).rowcount


def close(connection: Connection, execution_id: str, *, continued_by: str) -> None:
    """Prevent another continuation, even after the continuing execution and the data carried over to it are deleted."""
    mine = executions.c.id == execution_id
    connection.execute(update(executions).where(mine).values(failure={CONTINUED_BY: continued_by}))


def close_gaps(connection: Connection, deleted: Mapping[str, str | None]) -> None:
    """Link the successors of deleted executions to these executions' predecessors, so that no chain is broken.

    :param deleted: ids of deleted executions, each with the id of the execution that it continued
    """
    continued_from = executions.c.continued_from
    followers = select(executions.c.id, continued_from).where(continued_from.in_(list(deleted)))
    for execution_id, continued in connection.execute(followers).all():
        while earlier := deleted.get(continued):
            continued = earlier
        if continued not in deleted:
            mine = executions.c.id == execution_id
            connection.execute(update(executions).where(mine).values(continued_from=continued))


def keep_out_earlier(connection: Connection) -> bool:
    """Stop releases that cannot continue executions from claiming any here; return False if one of them is running."""
    if connection.dialect.name == "sqlite":
        return True
    return schema.keep_out_earlier(connection, schema.WITH_CHAINS)
