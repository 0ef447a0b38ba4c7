"""What the page reads: never more than it shows, however large the outputs are that crews have stored."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, and_, cast, func, or_, select
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement

from crew_service.storage.states import State
from crew_service.storage.tables import executions, results

SHOWN = 100_000  # characters of a text on the page; the whole text is a link away
SHORT = 300  # characters of a text in a list
SEARCHED = 10_000  # of the newest executions, whose inputs are searched
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
    query = select(*columns).order_by(executions.c.created_at.desc(), executions.c.id.desc()).limit(limit)
    return list(connection.execute(query.where(*_conditions(which))))


def _conditions(which: Filter) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = [executions.c.crew == which.crew]
    if which.owner is not None:
        wanted.append(executions.c.owner == which.owner)
    if which.states:
        wanted.append(executions.c.state.in_(which.states))
    if which.before:
        moment, last = which.before
        same = and_(executions.c.created_at == moment, executions.c.id < last)
        wanted.append(or_(executions.c.created_at < moment, same))
    if which.search:
        wanted.append(_found(which.crew, which.search))
    return wanted


def _found(crew: str, search: str) -> ColumnElement[bool]:
    """By the beginning of an id, or in the inputs and meta of the newest executions of the crew."""
    stored = json.dumps(search)[1:-1]
    texts = or_(*(cast(executions.c[name], Text).icontains(stored, autoescape=True) for name in ("inputs", "meta")))
    of_crew = select(executions.c.id).where(executions.c.crew == crew)
    recent = of_crew.order_by(executions.c.created_at.desc()).limit(SEARCHED)
    ids = or_(*(executions.c[name].startswith(search.lower(), autoescape=True) for name in ("id", "kickoff_id")))
    return or_(ids, and_(executions.c.id.in_(recent), texts))


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
