"""Reads and writes of executions; each function is part of the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, insert, select, update

from .crews import TaskOutput
from .states import CLAIM, Move, State
from .tables import executions, outbox, results


def create(connection: Connection, **values: Any) -> None:
    connection.execute(insert(executions).values(state=State.QUEUED, asked=[], **values))


# Built once: to build a statement costs several times what it costs to run it.
BY_ID = select(executions).where(executions.c.id == bindparam("id"))
BY_KICKOFF_ID = select(executions).where(executions.c.kickoff_id == bindparam("id"))
TASKS_OF = select(results.c.task).where(results.c.execution_id == bindparam("id")).order_by(results.c.position)


def looking_at(names: tuple[str, ...]) -> Select[Any]:
    """A look reads only the columns that it tells of: to decode the others takes longer than the read."""
    columns = [executions.c[name] for name in ("id", "kickoff_id", "owner", "state", *names)]
    return select(*columns).where(executions.c.kickoff_id == bindparam("key"))


def by_id(connection: Connection, execution_id: str) -> Row[Any] | None:
    return connection.execute(BY_ID, {"id": execution_id}).one_or_none()


def by_kickoff_id(connection: Connection, kickoff_id: str) -> Row[Any] | None:
    return connection.execute(BY_KICKOFF_ID, {"id": kickoff_id}).one_or_none()


def tasks_of(connection: Connection, execution_id: str) -> list[TaskOutput]:
    return list(connection.execute(TASKS_OF, {"id": execution_id}).scalars())


def latest(connection: Connection, *, owner: str | None, limit: int, state: State | None = None) -> list[Row[Any]]:
    """The newest executions; of everybody when no owner is given, in every state when none is."""
    query = select(executions).order_by(executions.c.created_at.desc()).limit(limit)
    if owner is not None:
        query = query.where(executions.c.owner == owner)
    if state is not None:
        query = query.where(executions.c.state == state)
    return list(connection.execute(query))


def due(connection: Connection, *, now: float, limit: int) -> list[str]:
    query = (
        select(executions.c.id)
        .where(executions.c.state == State.QUEUED, executions.c.due_at <= now)
        .order_by(executions.c.due_at)
        .limit(limit)
    )
    return list(connection.execute(query).scalars())


def move(
    connection: Connection,
    execution_id: str,
    step: Move,
    *,
    now: float,
    within: int | None = None,
    **values: Any,
) -> bool:
    """Make the move where the state allows it and, if given, segment `within` is still the current one."""
    query = update(executions).where(executions.c.id == execution_id, executions.c.state.in_(step.sources))
    if within is not None:
        query = query.where(executions.c.segment == within)
    done = connection.execute(query.values(state=step.target, updated_at=now, **values))
    return done.rowcount == 1


def claim(connection: Connection, execution_id: str, *, now: float) -> Row[Any] | None:
    """Take a queued execution into a new segment; None when it is not queued any more."""
    values: dict[str, Any] = {"segment": executions.c.segment + 1, "current_task": None, "current_agent": None}
    values["counted_at"] = now
    if not move(connection, execution_id, CLAIM, now=now, **values):
        return None
    return by_id(connection, execution_id)


def note(connection: Connection, execution_id: str, *, within: int, now: float, **values: Any) -> bool:
    """Record progress of the running segment; False when the segment is no longer the current one."""
    query = update(executions).where(
        executions.c.id == execution_id,
        executions.c.state == State.RUNNING,
        executions.c.segment == within,
    )
    return connection.execute(query.values(updated_at=now, **values)).rowcount == 1


def ended(now: float) -> dict[str, Any]:
    """What every end writes: what only a running execution needs is erased, credentials first of all."""
    return {"ended_at": now, "webhooks": None, "gate": None}


def add_result(connection: Connection, execution_id: str, position: int, task: TaskOutput) -> None:
    connection.execute(insert(results).values(execution_id=execution_id, position=position, task=task))


def requeue_lost(connection: Connection, running: Collection[str], *, now: float) -> int:
    """What reads as running but is run by nobody goes on from its last finished task."""
    query = update(executions).where(executions.c.state == State.RUNNING, executions.c.id.not_in(running))
    return connection.execute(query.values(state=State.QUEUED, due_at=now, updated_at=now)).rowcount


def post(connection: Connection, execution_id: str, kind: str, url: str, body: Any, *, now: float) -> None:
    """Put a webhook into the outbox."""
    connection.execute(
        insert(outbox).values(execution_id=execution_id, kind=kind, url=url, body=body, attempts=0, due_at=now)
    )


def withdraw_question(connection: Connection, execution_id: str) -> None:
    """The question is answered or moot: its webhook is not delivered any more."""
    connection.execute(delete(outbox).where(outbox.c.execution_id == execution_id, outbox.c.kind == "human_input"))


def tidy(value: Any) -> Any:
    """Make a crew's value plain JSON that every reader accepts: no lone surrogates, no NaN, no foreign types."""
    text = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()
    return json.loads(text, parse_constant=lambda _: None)
