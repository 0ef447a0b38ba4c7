"""Records which process is running which execution; each function runs in the caller's transaction.

A process is registered while it runs, and increments a number as its heartbeat. If the number has not changed for long
enough, another process deletes the silent one and continues its executions. Each process measures the silence of the
others by its own clock, so clocks are never compared between machines. A process that was deleted by mistake notices at
its next heartbeat or claim. Until then, its segments' writes are rejected, since every claim gives the execution a new
segment number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import Any

from sqlalchemy import BigInteger, and_, case, cast, delete, func, insert, literal_column, or_, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import Select

from crew_service.storage import schema
from crew_service.storage.holds import HAS_BEGUN, NONE, Holds, is_free, of_queue
from crew_service.storage.states import CLAIM, REQUEUE, State
from crew_service.storage.tables import executions, journal, processes

LONGEST_DELAY = 2.0  # seconds; a later due_at means the clock was set back
MOST_CALLS = 1_000_000  # in the journal of one task
QUEUED: Any = literal_column(f"'{State.QUEUED}'")  # a literal, because the partial index does not apply to a parameter


def register(connection: Connection, process_id: str, *, host: str, alone: bool, now: float) -> int:
    """Add a process; `alone` means that no other can be running. Return how many orphaned executions were requeued."""
    if alone:
        connection.execute(delete(processes))
    row = {"id": process_id, "beat": 0, "host": host, "started_at": now, "release": schema.newest()}
    connection.execute(insert(processes).values(row))
    return _requeue(connection, _orphaned(), now, _of_lost_process(now))


def unregister(connection: Connection, process_id: str, *, now: float) -> None:
    connection.execute(delete(processes).where(processes.c.id == process_id))
    _requeue(connection, executions.c.claimed_by == process_id, now, _given_back(now))


def beat(connection: Connection, process_id: str) -> bool:
    """Write a heartbeat; return False if another process has removed this one."""
    counted = update(processes).where(processes.c.id == process_id).values(beat=processes.c.beat + 1)
    return connection.execute(counted).rowcount == 1


def beats(connection: Connection) -> dict[str, int]:
    return {row.id: row.beat for row in connection.execute(select(processes.c.id, processes.c.beat))}


def remove_process(connection: Connection, process_id: str, *, beat: int, now: float) -> int | None:
    """Delete a process and return how many executions were requeued, or None if its heartbeat has changed."""
    dead = delete(processes).where(processes.c.id == process_id, processes.c.beat == beat)
    if connection.execute(dead).rowcount == 0:
        return None
    return _requeue(connection, executions.c.claimed_by == process_id, now, _of_lost_process(now))


def claim_due(
    connection: Connection, process_id: str, crew: str, *, now: float, limit: int, holds: Holds = NONE
) -> list[str] | None:
    """Claim up to `limit` queued executions, with owners taking turns; return None if this process was removed."""
    alive = select(processes.c.id).where(processes.c.id == process_id).with_for_update(read=True)
    if connection.execute(alive).one_or_none() is None:
        return None
    claimed = _in_turn(connection, crew, now, limit, holds)
    if claimed:
        values: dict[str, Any] = {"state": CLAIM.target, "claimed_by": process_id, "segment": executions.c.segment + 1}
        # If a service on an earlier release claimed it first, its start time is unknown.
        values |= {"had_begun": HAS_BEGUN, "started_at": case((HAS_BEGUN, executions.c.started_at), else_=now)}
        values |= {"writes": 0, "current_task": None, "current_agent": None, "counted_at": now, "updated_at": now}
        values |= {"held_until": None, "interrupted_at": None}
        is_queued = executions.c.state.in_(CLAIM.sources)
        connection.execute(update(executions).where(executions.c.id.in_(claimed), is_queued).values(values))
    return claimed


def _in_turn(connection: Connection, crew: str, now: float, limit: int, holds: Holds) -> list[str]:
    """Lock interrupted executions, which keep their places, and then each owner's oldest queued ones.

    Owners take turns, those with the fewest running executions first.

    These queries sort in the order of the indexes that SQLite should use; others also contain finished executions.
    """
    owner = executions.c.owner
    running = select(owner).where(executions.c.crew == crew, executions.c.state == State.RUNNING)
    places = Counter(connection.execute(running.order_by(executions.c.due_at)).scalars())
    interrupted = connection.execute(_interrupted(crew).limit(limit).with_for_update(skip_locked=True)).all()
    places.update(row.owner for row in interrupted)
    ids = [row.id for row in interrupted]
    turns = [(places[name], due_at, name or "") for name, due_at in _heads(connection, crew, now, holds)]
    heapify(turns)
    while turns and len(ids) < limit:
        place, _, name = heappop(turns)
        query = _queued(crew, now, holds).where(owner == (name or None), executions.c.id.not_in(ids))
        number = 1 if turns else limit - len(ids)
        rows = connection.execute(query.limit(number).with_for_update(skip_locked=True)).all()
        ids += [row.id for row in rows]
        if rows:
            heappush(turns, (place + len(rows), rows[-1].due_at, name))
    return ids


def _heads(connection: Connection, crew: str, now: float, holds: Holds) -> list[tuple[str | None, float]]:
    """Return the owners of queued executions, each with its earliest due time, using one index lookup per owner."""
    queued = executions.alias()
    of_crew = (queued.c.crew == crew, queued.c.state == QUEUED, queued.c.owner.is_not(None))
    first = select(queued.c.owner).where(*of_crew).order_by(queued.c.owner, queued.c.due_at).limit(1)
    owners = select(first.scalar_subquery().label("owner")).cte("owners", recursive=True)
    following = first.where(queued.c.owner > owners.c.owner).scalar_subquery()
    owners = owners.union_all(select(following).where(owners.c.owner.is_not(None)))
    oldest = _queued(crew, now, holds).with_only_columns(executions.c.due_at).limit(1)
    # The recursion ends with a null, which is also the owner of the organization's executions.
    of_organization = oldest.where(executions.c.owner.is_(None)).scalar_subquery()
    of_owner = oldest.where(executions.c.owner == owners.c.owner).scalar_subquery()
    due_at = case((owners.c.owner.is_(None), of_organization), else_=of_owner).label("due_at")
    heads = connection.execute(select(owners.c.owner, due_at))
    return [(row.owner, row.due_at) for row in heads if row.due_at is not None]


def _interrupted(crew: str) -> Select[Any]:
    """Select executions that were interrupted after they were due; behind others, those would also begin over a budget.

    An earlier release does not know the column, so it may contain an interruption before the last answer.
    """
    query = select(executions.c.id, executions.c.owner).where(executions.c.crew == crew, executions.c.state == QUEUED)
    return query.where(executions.c.interrupted_at >= executions.c.due_at).order_by(executions.c.due_at)


def _queued(crew: str, now: float, holds: Holds) -> Select[Any]:
    """Select queued executions that are due and may begin, each owner's oldest first."""
    due = or_(executions.c.due_at <= now, executions.c.due_at > now + LONGEST_DELAY)
    query = select(executions.c.id, executions.c.due_at).where(executions.c.crew == crew, executions.c.state == QUEUED)
    return query.where(due, holds.may_begin).order_by(executions.c.owner, executions.c.due_at)


def claimed_by(connection: Connection, process_id: str, crew: str) -> set[str]:
    query = select(executions.c.id).where(executions.c.claimed_by == process_id, executions.c.crew == crew)
    return set(connection.execute(query).scalars())


def has_queued(connection: Connection, crew: str, *, now: float) -> bool:
    """Return whether anything is queued; check this before a claim, because a transaction costs more."""
    query = select(executions.c.id).where(of_queue(crew), is_free(now)).limit(1)
    return connection.execute(query).one_or_none() is not None


def queues(connection: Connection, *, now: float) -> list[Row[Any]]:
    """Return how many executions of each crew are queued, held or running, and since when the oldest queued is due."""
    is_running, is_waiting = executions.c.state == State.RUNNING, executions.c.state == State.QUEUED
    is_queued, is_held = and_(is_waiting, is_free(now)), and_(is_waiting, ~is_free(now))
    query = (
        select(
            executions.c.crew,
            func.count(case((is_queued, 1))).label("queued"),
            func.count(case((is_held, 1))).label("held"),
            func.count(case((is_running, 1))).label("running"),
            func.min(case((is_queued, executions.c.due_at))).label("oldest"),
        )
        .where(or_(is_waiting, is_running))
        .group_by(executions.c.crew)
        .order_by(executions.c.crew)
    )
    return list(connection.execute(query))


def requeue_lost(connection: Connection, process_id: str, crew: str, running: Collection[str], *, now: float) -> int:
    """Requeue executions that this process has claimed but is not running; each continues after its finished tasks."""
    mine = or_(executions.c.claimed_by == process_id, executions.c.claimed_by.is_(None))
    lost = and_(mine, executions.c.crew == crew, executions.c.id.not_in(running))
    return _requeue(connection, lost, now, _given_back(now))


def _orphaned() -> Any:
    known = select(processes.c.id)
    return or_(executions.c.claimed_by.is_(None), executions.c.claimed_by.not_in(known))


def _of_lost_process(now: float) -> dict[str, Any]:
    """Count the processes lost while running an execution; restart at 1 if it has made progress since the last loss.

    Progress is derived from data that every release writes, so that no release needs to reset the count.
    """
    of_it = (journal.c.execution_id == executions.c.id, journal.c.ended_at.is_not(None))
    calls = select(func.count()).where(*of_it).scalar_subquery()
    progress = cast(executions.c.completed_tasks, BigInteger) * MOST_CALLS + calls
    losses = case((executions.c.lost_at == progress, executions.c.losses + 1), else_=1)
    return {"interrupted_at": case((HAS_BEGUN, now)), "losses": losses, "lost_at": progress}


def _given_back(now: float) -> dict[str, Any]:
    """Let a segment that could not even begin wait behind others: nothing counts how often that happens."""
    has_written = executions.c.writes > 0
    return {"interrupted_at": case((has_written, now)), "due_at": case((has_written, executions.c.due_at), else_=now)}


def _requeue(connection: Connection, which: Any, now: float, values: dict[str, Any]) -> int:
    query = update(executions).where(which, executions.c.state.in_(REQUEUE.sources))
    queued = {"state": REQUEUE.target, "claimed_by": None, "updated_at": now}
    return connection.execute(query.values({**queued, **values})).rowcount
