"""Records which process runs which execution; each function is part of the caller's transaction.

A process is registered while it runs, and increments a number as its heartbeat. If another process sees no growth for
long enough, it deletes that process and continues its executions. Clocks are never compared between machines or
with an earlier time. A process that was deleted by mistake notices at its next count or claim. Until then, writes
of its segments are rejected, since every claim gives the execution a new segment number.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import BigInteger, and_, case, cast, delete, func, insert, or_, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql.selectable import Subquery

from crew_service.storage import schema
from crew_service.storage.states import CLAIM, State
from crew_service.storage.tables import executions, journal, processes

LONGEST_DELAY = 2.0  # seconds; a later due_at means the clock was set back
MOST_CALLS = 1_000_000  # in the journal of one task
TAKING_TURNS = 2_000  # queued executions, the oldest, among which owners take turns


def register(connection: Connection, process_id: str, *, host: str, alone: bool, now: float) -> int:
    """Add a process; if it is `alone` on the database, no other is alive. Return how many executions it found
    orphaned."""
    if alone:
        connection.execute(delete(processes))
    row = {"id": process_id, "beat": 0, "host": host, "started_at": now, "release": schema.newest()}
    connection.execute(insert(processes).values(row))
    return _requeue(connection, _orphaned(), now, **_counting_losses())


def unregister(connection: Connection, process_id: str, *, now: float) -> None:
    connection.execute(delete(processes).where(processes.c.id == process_id))
    _requeue(connection, executions.c.claimed_by == process_id, now)


def beat(connection: Connection, process_id: str) -> bool:
    """Write a heartbeat; False if others have removed this process."""
    counted = update(processes).where(processes.c.id == process_id).values(beat=processes.c.beat + 1)
    return connection.execute(counted).rowcount == 1


def beats(connection: Connection) -> dict[str, int]:
    return {row.id: row.beat for row in connection.execute(select(processes.c.id, processes.c.beat))}


def remove_process(connection: Connection, process_id: str, *, beat: int, now: float) -> int | None:
    """Delete a process without a heartbeat; return how many executions continue elsewhere, None if it had one."""
    dead = delete(processes).where(processes.c.id == process_id, processes.c.beat == beat)
    if connection.execute(dead).rowcount == 0:
        return None
    return _requeue(connection, executions.c.claimed_by == process_id, now, **_counting_losses())


def claim_due(connection: Connection, process_id: str, crew: str, *, now: float, limit: int) -> list[str] | None:
    """Take up to `limit` queued executions, oldest first; None if this process was removed."""
    alive = select(processes.c.id).where(processes.c.id == process_id).with_for_update(read=True)
    if connection.execute(alive).one_or_none() is None:
        return None
    turns = _turns(crew, now)
    query = (
        select(executions.c.id)
        .join(turns, turns.c.id == executions.c.id)
        .where(executions.c.state == State.QUEUED)
        .order_by(turns.c.place, executions.c.due_at)
        .limit(limit)
        .with_for_update(of=executions, skip_locked=True)
    )
    claimed = list(connection.execute(query).scalars())
    if claimed:
        values: dict[str, Any] = {"state": CLAIM.target, "claimed_by": process_id, "segment": executions.c.segment + 1}
        # If a service of an earlier release claimed it first, its start time is unknown.
        values["started_at"] = case((executions.c.segment == 0, now), else_=executions.c.started_at)
        values |= {"writes": 0, "current_task": None, "current_agent": None, "counted_at": now, "updated_at": now}
        connection.execute(update(executions).where(executions.c.id.in_(claimed)).values(values))
    return claimed


def _turns(crew: str, now: float) -> Subquery:
    """Select the oldest queued executions with their places: owners take turns, those with the fewest running first."""
    of_crew, owner = executions.c.crew == crew, func.coalesce(executions.c.owner, "").label("owner")
    due = or_(executions.c.due_at <= now, executions.c.due_at > now + LONGEST_DELAY)
    running = select(owner, func.count().label("number")).where(of_crew, executions.c.state == State.RUNNING)
    running_by_owner = running.group_by(owner).subquery()
    queued = select(executions.c.id, owner, executions.c.due_at).where(of_crew, executions.c.state == State.QUEUED, due)
    oldest = queued.order_by(executions.c.due_at).limit(TAKING_TURNS).subquery()
    turn = func.row_number().over(partition_by=oldest.c.owner, order_by=oldest.c.due_at)
    place = (turn + func.coalesce(running_by_owner.c.number, 0)).label("place")
    mine = running_by_owner.c.owner == oldest.c.owner
    return select(oldest.c.id, place).outerjoin(running_by_owner, mine).subquery()


def claimed_by(connection: Connection, process_id: str, crew: str) -> set[str]:
    query = select(executions.c.id).where(executions.c.claimed_by == process_id, executions.c.crew == crew)
    return set(connection.execute(query).scalars())


def has_queued(connection: Connection, crew: str) -> bool:
    """Whether anything is queued: checked before a claim, because a transaction costs more."""
    query = select(executions.c.id).where(executions.c.crew == crew, executions.c.state == State.QUEUED).limit(1)
    return connection.execute(query).one_or_none() is not None


def requeue_lost(connection: Connection, process_id: str, crew: str, running: Collection[str], *, now: float) -> int:
    """Requeue what this process has claimed but no thread runs, to continue from its last finished task."""
    mine = or_(executions.c.claimed_by == process_id, executions.c.claimed_by.is_(None))
    lost = and_(mine, executions.c.crew == crew, executions.c.id.not_in(running))
    return _requeue(connection, lost, now)


def _orphaned() -> Any:
    known = select(processes.c.id)
    return or_(executions.c.claimed_by.is_(None), executions.c.claimed_by.not_in(known))


def _counting_losses() -> dict[str, Any]:
    """Count the processes that were lost while they ran it, anew if it has made progress since the last loss.

    The progress is read from what every release writes, so that it need not reset the count.
    """
    of_it = (journal.c.execution_id == executions.c.id, journal.c.ended_at.is_not(None))
    calls = select(func.count()).where(*of_it).scalar_subquery()
    progress = cast(executions.c.completed_tasks, BigInteger) * MOST_CALLS + calls
    losses = case((executions.c.lost_at == progress, executions.c.losses + 1), else_=1)
    return {"losses": losses, "lost_at": progress}


def _requeue(connection: Connection, which: Any, now: float, **counts: Any) -> int:
    query = update(executions).where(which, executions.c.state == State.RUNNING)
    values = {"state": State.QUEUED, "claimed_by": None, "due_at": now, "updated_at": now, **counts}
    return connection.execute(query.values(values)).rowcount
