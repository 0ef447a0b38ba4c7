"""Sums of usage by hour, crew, owner and model; they outlive the executions. See `engine.ledger` for who writes them.

Rows are only added, since two writers would wait for each other at a row that they share; `add_up` merges them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import case, delete, func, insert, or_, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement

from crew_service.storage import owners
from crew_service.storage.states import OVER, State
from crew_service.storage.tables import executions, processes, usage_sums
from crew_service.storage.transactions import lock_name

HOUR = 3600
WITH_SUMS = "0025"  # the last migration of the oldest release that writes them
TOKENS = ("total_tokens", "prompt_tokens", "completion_tokens")
SUMMED = ("executions", "of_model", *TOKENS, "unpriced", "cost_usd")
KEY = ("hour", "crew", "owner", "crew_token", "model")
AT_ONCE = 500  # rows added up at a time
MOST_MODELS = 5  # without a price, that are named
LATE = 3600.0  # seconds by which the clock of an earlier release's machine may be wrong
UNBOOKED = executions.c.tokens > executions.c.booked_tokens
OF_BOOKING = (
    *("id", "crew", "owner", "crew_token", "state", "tokens", "booked_tokens"),
    *("usage", "model_usage", "booked", "updated_at"),
)


def add(connection: Connection, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(usage_sums), rows)


def is_empty(connection: Connection) -> bool:
    return connection.execute(select(usage_sums.c.id).limit(1)).one_or_none() is None


def newest_hour(connection: Connection) -> int:
    hour: int | None = connection.execute(select(func.max(usage_sums.c.hour))).scalar()
    return hour or 0


def add_up(connection: Connection, *, since: int) -> bool:
    """Merge rows of the same key into their sum, from an hour on; return False if there is nothing left to do."""
    lock_name(connection, "usage_sums")
    key = [usage_sums.c[name] for name in KEY]
    several = select(*key).where(usage_sums.c.hour >= since).group_by(*key).having(func.count() > 1).limit(AT_ONCE)
    keys = connection.execute(several).all()
    for each in keys:
        same = [column.is_not_distinct_from(value) for column, value in zip(key, each, strict=True)]
        rows = connection.execute(select(usage_sums).where(*same)).all()
        connection.execute(delete(usage_sums).where(usage_sums.c.id.in_([row.id for row in rows])))
        summed = {name: sum(getattr(row, name) for row in rows) for name in SUMMED}
        connection.execute(insert(usage_sums), {**dict(zip(KEY, each, strict=True)), **summed})
    return len(keys) == AT_ONCE


def forget(connection: Connection, *, before: float) -> None:
    connection.execute(delete(usage_sums).where(usage_sums.c.hour < int(before // HOUR)))


def used(connection: Connection, wheres: Iterable[ColumnElement[bool]], *, since: float, until: float) -> Row[Any]:
    """Return the sums of a period that begins and ends with an hour."""
    totals = [func.coalesce(func.sum(usage_sums.c[name]), 0).label(name) for name in SUMMED]
    return connection.execute(select(*totals).where(*_in(since, until), *wheres)).one()


def unpriced_models(
    connection: Connection, wheres: Iterable[ColumnElement[bool]], *, since: float, until: float
) -> list[str]:
    """Return the first models of a period with a usage that has no price."""
    query = select(usage_sums.c.model).where(*_in(since, until), *wheres).group_by(usage_sums.c.model)
    query = query.having(func.sum(usage_sums.c.unpriced) > 0).order_by(usage_sums.c.model)
    return list(connection.execute(query.limit(MOST_MODELS)).scalars())


def grouped(
    connection: Connection,
    by: Collection[str],
    wheres: Iterable[ColumnElement[bool]],
    *,
    since: float,
    until: float,
    limit: int,
    within_crew: bool = False,
) -> list[Row[Any]]:
    """Return sums by any of day (days since 1970), crew, owner and model, in this order.

    By model, an execution counts at each model that it used.

    :param within_crew: whether the names of owners are unique, because all of them are known to one crew
    """
    made: dict[str, Any] = {"day": (usage_sums.c.hour - usage_sums.c.hour % 24) / 24}
    if not within_crew:
        made["owner"] = owners.label(usage_sums)
    keys = [(made[name] if name in made else usage_sums.c[name]).label(name) for name in by]
    summed = {name: usage_sums.c[name] for name in SUMMED}
    if "model" in by:
        summed["executions"] = usage_sums.c.of_model
    totals = [func.coalesce(func.sum(column), 0).label(name) for name, column in summed.items()]
    query = select(*keys, *totals).where(*_in(since, until), *wheres)
    query = query.group_by(*keys).having(func.count() > 0).order_by(*keys)
    return list(connection.execute(query.limit(limit)))


def _in(since: float, until: float) -> tuple[ColumnElement[bool], ...]:
    return usage_sums.c.hour >= int(since // HOUR), usage_sums.c.hour < int(-(-until // HOUR))


# --- usage that is stored with an execution, but not in the sums: an earlier release has written it ---


def unbooked(connection: Connection, ids: Collection[str] | None = None, *, ended_after: float = 0.0) -> list[Row[Any]]:
    """Return and lock some executions whose usage is not in the sums; omit those that are being written.

    :param ids: only these
    :param ended_after: only unfinished ones, and those that ended after this time
    """
    query = select(*(executions.c[name] for name in OF_BOOKING)).where(UNBOOKED)
    if ids is not None:
        query = query.where(executions.c.id.in_(ids))
    elif ended_after:
        is_open = executions.c.state.in_(sorted(set(State) - OVER))
        query = query.where(or_(is_open, executions.c.ended_at > ended_after - LATE))
    return list(connection.execute(query.limit(AT_ONCE).with_for_update(skip_locked=True)))


def book(connection: Connection, execution_id: str, booked: Mapping[str, Any], tokens: int, /, **more: Any) -> None:
    values = {"booked": booked, "booked_tokens": tokens}
    connection.execute(update(executions).where(executions.c.id == execution_id).values({**values, **more}))


def is_written_by_earlier(connection: Connection) -> bool:
    """Return whether a process of a release that does not write the sums is running executions."""
    earlier = case((processes.c.release.is_(None), True), else_=processes.c.release < WITH_SUMS)
    return connection.execute(select(processes.c.id).where(earlier).limit(1)).one_or_none() is not None
