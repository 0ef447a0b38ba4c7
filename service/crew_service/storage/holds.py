"""Executions that a budget holds in the queue.

Which ones may be claimed is decided by the budgets each time. The column `held_until` repeats it for those who only
count or show the queue, and spares a process a claim that would find nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Float, and_, case, cast, false, func, literal, null, or_, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement

from crew_service.budgets import Owner
from crew_service.storage.owners import is_of
from crew_service.storage.states import State
from crew_service.storage.tables import executions

AT_ONCE = 500  # executions in one statement
# A claimed execution has begun once it has written something; every release counts the writes since a claim.
HAS_BEGUN = and_(executions.c.segment > 0, or_(executions.c.had_begun.is_not(False), executions.c.writes > 0))


@dataclass(frozen=True)
class Holds:
    """Until when executions of one crew may not begin.

    :param everybody: anybody's
    :param owners: those of an owner, if that is later
    """

    everybody: float | None = None
    owners: Mapping[Owner, float] = field(default_factory=dict)

    @property
    def until(self) -> ColumnElement[float | None]:
        """When an execution may begin; null if it already may, or has begun."""
        of_owner = [(is_of(executions, owner), literal(until, Float)) for owner, until in self.owners.items()]
        never = cast(null(), Float)  # PostgreSQL would take a plain null for text
        otherwise: Any = never if self.everybody is None else literal(self.everybody, Float)
        own = case(*of_owner, else_=otherwise) if of_owner else otherwise
        return case((HAS_BEGUN, never), else_=own)

    @property
    def may_begin(self) -> ColumnElement[bool]:
        if self.everybody is not None:
            return HAS_BEGUN
        barred = [is_of(executions, owner) for owner in self.owners]
        return or_(HAS_BEGUN, ~or_(false(), *barred)) if barred else ~false()


NONE = Holds()


def mark(connection: Connection, crew: str, holds: Holds) -> list[Row[Any]]:
    """Mark a crew's queued executions; return those whose mark has changed. Omit those that others are changing."""
    wrong = executions.c.held_until.is_distinct_from(holds.until)
    if holds.everybody is None and not holds.owners:
        wrong = executions.c.held_until.is_not(None)
    query = select(executions.c.id, executions.c.owner, executions.c.crew_token).where(of_queue(crew), wrong)
    rows: list[Row[Any]] = list(connection.execute(query.with_for_update(skip_locked=True)))
    ids = [row.id for row in rows]
    for begin in range(0, len(ids), AT_ONCE):
        some = update(executions).where(executions.c.id.in_(ids[begin : begin + AT_ONCE]))
        connection.execute(some.values(held_until=holds.until))
    return rows


def of_queue(crew: str) -> ColumnElement[bool]:
    return and_(executions.c.crew == crew, executions.c.state == State.QUEUED)


def is_free(now: float) -> ColumnElement[bool]:
    """Return the condition for an execution that no budget holds any more; `deploy/crew-jobs.yaml` repeats it."""
    return or_(executions.c.held_until.is_(None), executions.c.held_until <= now)


def numbers(connection: Connection, *, now: float) -> dict[str, int]:
    """Return how many executions of each crew are held."""
    held = and_(executions.c.state == State.QUEUED, executions.c.held_until > now)
    query = select(executions.c.crew, func.count().label("number")).where(held).group_by(executions.c.crew)
    return {row.crew: row.number for row in connection.execute(query)}
