"""What the page reads: never more than it shows, however large the outputs are that crews have stored."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, and_, cast, func, or_, select
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement, Select

from crew_service.storage import newest as in_order
from crew_service.storage.states import State
from crew_service.storage.tables import executions, results

SHOWN = 100_000  # characters of a text on the page; the whole text is a link away
SHORT = 300  # characters of a text in a list
SEARCHED = 10_000  # of the newest executions, whose inputs are searched
SAME_START = 100  # executions whose ids begin with the same eight digits
ID_START = re.compile(r"[0-9a-f]{8}[0-9a-f-]*\Z")  # enough of an id to be looked for among all executions
MANY_TASKS = 200
PARTIAL_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,3})?$")


@dataclass(frozen=True)
class Filter:
    """Which executions a list shows; `before` is the moment and the id of the last one on the page before."""

    crew: str
    owner: str | None
    states: frozenset[State] = frozenset()
    search: str = ""
    before: tuple[float, str] | None = None


@dataclass(frozen=True)
class Part:
    """A stored value as text, cut to what a page shows."""

    text: str
    length: int  # of the stored JSON, in characters
    value: Any = None  # where it was small enough to be read as a whole

    @property
    def is_cut(self) -> bool:
        return self.length > SHOWN


LISTED = [executions.c[name] for name in ("id", "kickoff_id", "owner", "state", "created_at", "completed_tasks")]


def newest(connection: Connection, which: Filter, *, limit: int) -> list[Row[Any]]:
    """Return the newest executions of a filter, with the beginning of their inputs and of their error."""
    columns = [*LISTED, *(_start(executions.c[name], SHORT) for name in ("current_task", "inputs", "error"))]
    if which.search:
        return _found(connection, columns, which, limit)
    return in_order.newest(
        connection,
        columns,
        crew=which.crew,
        owner=which.owner,
        states=which.states,
        before=which.before,
        limit=limit,
    )


def _found(connection: Connection, columns: list[Any], which: Filter, limit: int) -> list[Row[Any]]:
    """Look among the newest executions of the crew, and for the beginning of an id among all."""
    ids = set(connection.execute(_among_recent(which).limit(limit)).scalars())
    if ID_START.match(which.search.lower()):
        ids |= _ids_from(connection, which.search.lower())
    rows = connection.execute(select(executions.c.crew, *columns).where(executions.c.id.in_(sorted(ids))))
    return sorted((row for row in rows if _fits(row, which)), key=in_order.position, reverse=True)[:limit]


def _among_recent(which: Filter) -> Select[Any]:
    names = ("id", "kickoff_id", "owner", "state", "created_at", "inputs", "meta")
    of_crew = select(*(executions.c[name] for name in names)).where(executions.c.crew == which.crew)
    recent = of_crew.order_by(executions.c.created_at.desc()).limit(SEARCHED).subquery()
    stored = json.dumps(which.search)[1:-1]
    texts = (cast(recent.c[name], Text).icontains(stored, autoescape=True) for name in ("inputs", "meta"))
    ids = (recent.c[name].startswith(which.search.lower(), autoescape=True) for name in ("id", "kickoff_id"))
    query = select(recent.c.id).where(or_(*texts, *ids))
    if which.owner is not None:
        query = query.where(recent.c.owner == which.owner)
    if which.states:
        query = query.where(recent.c.state.in_(which.states))
    if which.before:
        moment, last = which.before
        query = query.where(or_(recent.c.created_at < moment, and_(recent.c.created_at == moment, recent.c.id < last)))
    return query.order_by(recent.c.created_at.desc(), recent.c.id.desc())


def _ids_from(connection: Connection, start: str) -> set[str]:
    """Return the executions whose id, or polled id, begins so; `g` comes after every digit of an id."""
    columns = (executions.c.id, executions.c.kickoff_id)
    queries = (select(executions.c.id).where(column >= start, column < f"{start}g") for column in columns)
    return {found for query in queries for found in connection.execute(query.limit(SAME_START)).scalars()}


def _fits(row: Row[Any], which: Filter) -> bool:
    is_shown = row.crew == which.crew and which.owner in (None, row.owner)
    is_before = which.before is None or in_order.position(row) < which.before
    return is_shown and is_before and (not which.states or row.state in which.states)


def parts(connection: Connection, execution_id: str, names: Collection[str]) -> dict[str, Part]:
    """Return these columns of an execution, each as far as a page shows it."""
    columns = [column for name in names for column in (_start(executions.c[name], SHOWN), _length(executions.c[name]))]
    row = connection.execute(select(*columns).where(executions.c.id == execution_id)).one()
    return {name: _part(getattr(row, name), getattr(row, f"{name}_length")) for name in names}


def task_parts(connection: Connection, execution_id: str) -> list[tuple[int, Part]]:
    """Return the finished tasks of an execution with their positions."""
    query = (
        select(results.c.position, _start(results.c.task, SHOWN), _length(results.c.task))
        .where(results.c.execution_id == execution_id)
        .order_by(results.c.position)
        .limit(MANY_TASKS)
    )
    return [(row.position, _part(row.task, row.task_length)) for row in connection.execute(query)]


def whole(connection: Connection, execution_id: str, position: int | None) -> Any:
    """Return the output of an execution, or its task at that position; None where there is none."""
    query = select(executions.c.output).where(executions.c.id == execution_id)
    if position is not None:
        query = select(results.c.task).where(results.c.execution_id == execution_id, results.c.position == position)
    return connection.execute(query).scalar_one_or_none()


def _start(column: ColumnElement[Any], length: int) -> ColumnElement[str]:
    return func.substr(cast(column, Text), 1, length).label(column.key or "")


def _length(column: ColumnElement[Any]) -> ColumnElement[int]:
    return func.length(cast(column, Text)).label(f"{column.key}_length")


def _part(stored: str | None, length: int | None) -> Part:
    if stored is None:
        return Part("", 0)
    if length is not None and length > SHOWN:
        return Part(beginning(stored), length)
    try:
        value = json.loads(stored)
    except (ValueError, RecursionError):
        return Part(stored, len(stored))
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return Part(text, len(stored), value)


def beginning(stored: str) -> str:
    """Return what the beginning of a JSON text says: of a string its characters, of anything else the JSON itself."""
    if not stored.startswith('"'):
        return stored
    if stored.endswith('"') and len(stored) > 1:
        stored = stored[:-1]
    try:
        text = json.loads(PARTIAL_ESCAPE.sub("", stored) + '"')
    except ValueError:
        return stored
    return str(text).encode("utf-8", "replace").decode()
