"""Queries for pages and details: they never read more than is shown, however large the stored outputs are."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Integer, Table, Text, bindparam, case, cast, func, literal, or_, select
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement, Select

from crew_service.storage import integrity
from crew_service.storage import newest as in_order
from crew_service.storage.states import State
from crew_service.storage.tables import earlier_kickoff_ids, executions, results, rounds

SHORT = 300  # characters of text in a list
SEARCHED = 10_000  # newest executions whose inputs are searched
SAME_START = 100  # maximum number of executions found by the beginning of an id
ID_START = re.compile(r"[0-9a-f]{8}[0-9a-f-]*\Z")  # enough of an id to search all executions for it
DECODER = json.JSONDecoder(parse_constant=lambda _: None)
WHOLE_CHARACTERS = re.compile(r'(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*')  # of a JSON string, up to a truncated one
SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class Filter:
    """Selects the executions that a list shows; `before` is the time and id of the last one on the previous page."""

    crew: str
    owner: str | None
    states: frozenset[State] = frozenset()
    search: str = ""
    dag_id: str | None = None
    before: in_order.Position | None = None


LISTED = [
    executions.c[name]
    for name in (
        *("id", "kickoff_id", "owner", "state", "created_at", "completed_tasks"),
        *("dag_id", "work_seconds", "tokens", "usage", "model_usage", "held_until"),
    )
]


def newest(connection: Connection, which: Filter, *, limit: int) -> list[Row[Any]]:
    """Return the newest executions that match a filter, with the beginning of their inputs and error."""
    columns = [*LISTED, *(_start(executions.c[name], SHORT) for name in ("current_task", "inputs", "error"))]
    if which.search or (which.dag_id and (which.states or which.owner is not None)):
        return _found(connection, columns, which, limit)
    return in_order.newest(
        connection,
        columns,
        crew=which.crew,
        owner=which.owner,
        dag_id=which.dag_id,
        states=which.states,
        before=which.before,
        limit=limit,
    )


def _found(connection: Connection, columns: list[Any], which: Filter, limit: int) -> list[Row[Any]]:
    """Search the newest executions of the crew or DAG, and all executions for the beginning of an id."""
    ids = set(connection.execute(_among_recent(which).limit(limit)).scalars())
    if ID_START.match(which.search.lower()):
        ids |= _ids_from(connection, which.search.lower())
    rows = connection.execute(select(executions.c.crew, *columns).where(executions.c.id.in_(sorted(ids))))
    return sorted((row for row in rows if _fits(row, which)), key=in_order.position, reverse=True)[:limit]


def _among_recent(which: Filter) -> Select[Any]:
    names = ("id", "kickoff_id", "owner", "state", "created_at", "inputs", "meta")
    of_crew = select(*(executions.c[name] for name in names)).where(executions.c.crew == which.crew)
    if which.dag_id:
        of_crew = of_crew.where(executions.c.dag_id == which.dag_id)
    recent = of_crew.order_by(executions.c.created_at.desc()).limit(SEARCHED).subquery()
    stored = re.sub(r"([/%_])", r"/\1", json.dumps(which.search)[1:-1])
    texts = (cast(recent.c[name], Text).ilike(f"%{stored}%", escape="/") for name in ("inputs", "meta"))
    ids = (recent.c[name].startswith(which.search.lower(), autoescape=True) for name in ("id", "kickoff_id"))
    query = select(recent.c.id)
    if which.search:
        query = query.where(or_(*texts, *ids))
    if which.owner is not None:
        query = query.where(recent.c.owner == which.owner)
    if which.states:
        query = query.where(recent.c.state.in_(which.states))
    if which.before:
        query = query.where(in_order.follows(recent, which.before))
    return query.order_by(recent.c.created_at.desc(), recent.c.id.desc())


def _ids_from(connection: Connection, start: str) -> set[str]:
    """Return the ids of executions whose id or polled id begins with `start`; `g` sorts after every digit of an id."""
    columns = (executions.c.id, executions.c.kickoff_id)
    queries = (select(executions.c.id).where(column >= start, column < f"{start}g") for column in columns)
    return {some_id for query in queries for some_id in connection.execute(query.limit(SAME_START)).scalars()}


def _fits(row: Row[Any], which: Filter) -> bool:
    is_shown = row.crew == which.crew and which.owner in (None, row.owner) and which.dag_id in (None, row.dag_id)
    is_before = which.before is None or in_order.position(row) < which.before
    return is_shown and is_before and (not which.states or row.state in which.states)


def whole(connection: Connection, execution_id: str, position: int | None) -> Any:
    """Return an execution's output, or its task at that position; None if there is none."""
    query = select(executions.c.output).where(executions.c.id == execution_id)
    if position is not None:
        query = select(results.c.task).where(results.c.execution_id == execution_id, results.c.position == position)
    return connection.execute(query).scalar_one_or_none()


def _start(column: ColumnElement[Any], length: int | ColumnElement[int]) -> ColumnElement[str]:
    return func.substr(cast(column, Text), 1, length).label(column.key or "")


def _length(column: ColumnElement[Any]) -> ColumnElement[int]:
    return func.length(cast(column, Text)).label(f"{column.key}_length")


def beginning(stored: str) -> str:
    """Decode the beginning of a JSON value: return a string's characters, or the JSON itself for any other value."""
    if not stored.startswith('"'):
        return stored
    try:
        text = json.loads(f'"{WHOLE_CHARACTERS.match(stored, 1)[0]}"')  # type: ignore[index]
    except ValueError:
        return stored
    return str(text).encode("utf-8", "replace").decode()


def fields(stored: str) -> tuple[dict[str, Any], str | None]:
    """Return the fields at the beginning of a JSON object, and the name of a truncated string field, if any."""
    values: dict[str, Any] = {}
    at = _past(stored, 0, "{")
    try:
        while at is not None:
            name, at = DECODER.raw_decode(stored, at)
            at = _past(stored, at, ":")
            if at is None:
                break
            try:
                values[name], at = DECODER.raw_decode(stored, at)
            except ValueError:
                if stored[at : at + 1] != '"':
                    break
                values[name] = beginning(stored[at:])
                return values, name
            at = _past(stored, at, ",")
    except (ValueError, RecursionError):
        pass
    return values, None


def _past(stored: str, at: int, mark: str) -> int | None:
    """Return the position after a mark and the whitespace around it; None if the mark does not come next."""
    at = SPACE.match(stored, at).end()  # type: ignore[union-attr]
    if stored[at : at + 1] != mark:
        return None
    return SPACE.match(stored, at + 1).end()  # type: ignore[union-attr]


# The details of one execution. `key` is its id; `head` alone decides what a request may read. Statements are built
# once: building one takes as long as executing it, and a page needs a dozen.
MINE = executions.c.id == bindparam("key")
MOST = bindparam("most", type_=Integer)
HEAD = select(
    *(
        executions.c[name]
        for name in (
            *("id", "kickoff_id", "crew", "owner", "state", "segment", "writes"),
            *("calm_writes", "calm_shown", "calm_at", "held_until"),
        )
    )
)
HEADS = (
    HEAD.where(executions.c.kickoff_id == bindparam("key")),
    HEAD.where(MINE),
    HEAD.where(
        executions.c.id
        == select(earlier_kickoff_ids.c.execution_id)
        .where(earlier_kickoff_ids.c.kickoff_id == bindparam("key"))
        .scalar_subquery()
    ),
)
SMALL = select(
    *(
        executions.c[name]
        for name in (
            *("id", "kickoff_id", "crew", "state", "created_at", "started_at", "ended_at", "updated_at"),
            *("work_seconds", "tokens", "usage", "model_usage", "open_tasks", "current_task", "current_agent"),
            *("asked", "owner", "completed_tasks", "segment", "continued_from", "earlier_usage", "held_until"),
        )
    )
).where(MINE)
MOST_RESULTS = 2_000
MOST_ROUNDS = 500
MOST_IDS = 500


def head(connection: Connection, some_id: str) -> Row[Any] | None:
    """Find an execution by its id, or by any id under which it is or was polled."""
    rows = (connection.execute(query, {"key": some_id}).one_or_none() for query in HEADS)
    return next((row for row in rows if row is not None), None)


def small(connection: Connection, execution_id: str) -> Row[Any] | None:
    """Return an execution's columns, except those that may be large."""
    return connection.execute(SMALL, {"key": execution_id}).one_or_none()


EARLIER_IDS = (
    select(earlier_kickoff_ids.c.kickoff_id)
    .where(earlier_kickoff_ids.c.execution_id == bindparam("key"))
    .order_by(earlier_kickoff_ids.c.id.desc())
    .limit(MOST_IDS)
)


def earlier_ids(connection: Connection, execution_id: str) -> list[str]:
    """Return the ids under which an execution was polled between its first and its current one, newest last."""
    return list(connection.execute(EARLIER_IDS, {"key": execution_id}).scalars())[::-1]


@cache
def _wholes(names: tuple[str, ...]) -> Select[Any]:
    texts = [cast(executions.c[name], Text) for name in names]
    return select(*(case((func.length(text) > MOST, literal("")), else_=text) for text in texts)).where(MINE)


def wholes(connection: Connection, execution_id: str, names: tuple[str, ...], *, most: int) -> dict[str, str | None]:
    """Return columns as stored JSON: empty if longer than `most` characters, None if there is no value."""
    row = connection.execute(_wholes(names), {"key": execution_id, "most": most}).one()
    return dict(zip(names, row, strict=True))


@cache
def _starts(names: tuple[str, ...]) -> Select[Any]:
    return select(*_starts_of(executions, names)).where(MINE)


def _starts_of(table: Table, names: Collection[str]) -> list[ColumnElement[Any]]:
    return [part for name in names for part in (_start(table.c[name], MOST), _length(table.c[name]))]


def starts(
    connection: Connection, execution_id: str, names: tuple[str, ...], *, most: int
) -> dict[str, tuple[str | None, bool]]:
    """Return the beginnings of texts, and whether they are truncated."""
    row = connection.execute(_starts(names), {"key": execution_id, "most": most}).one()
    return {name: begun(getattr(row, name), getattr(row, f"{name}_length"), most) for name in names}


def begun(stored: str | None, length: int | None, most: int) -> tuple[str | None, bool]:
    """Return the beginning of a string, decoded from `most` characters of its JSON, and whether it is truncated."""
    return (None, False) if stored in (None, "null") else (beginning(str(stored)), (length or 0) > most)


RESULT_SIZES = (
    select(results.c.position, func.length(cast(results.c.task, Text)))
    .where(results.c.execution_id == bindparam("key"))
    .order_by(results.c.position.desc())
    .limit(bindparam("most"))
)
RESULT_STARTS = (
    select(results.c.position, results.c.figures, *_starts_of(results, ["task"]))
    .where(results.c.execution_id == bindparam("key"), results.c.position >= bindparam("since"))
    .order_by(results.c.position)
)


def result_sizes(connection: Connection, execution_id: str, *, most: int = MOST_RESULTS) -> list[tuple[int, int]]:
    """Return the positions and lengths of the newest finished tasks, oldest first."""
    newest = connection.execute(RESULT_SIZES, {"key": execution_id, "most": most})
    return [(row[0], row[1] or 0) for row in newest][::-1]


def result_starts(connection: Connection, execution_id: str, *, since: int, most: int) -> list[Row[Any]]:
    """Return `position`, `figures` and the beginning of `task` for finished tasks."""
    return list(connection.execute(RESULT_STARTS, {"key": execution_id, "since": since, "most": most}))


ROUND_TEXTS = ("question", "draft", "human_feedback")
OTHER_COLUMNS = [column for column in rounds.c if column.key not in ROUND_TEXTS]


def _of_newest_rounds(columns: list[ColumnElement[Any]]) -> Select[Any]:
    mine = select(*columns).where(rounds.c.execution_id == bindparam("key"))
    return mine.order_by(rounds.c.number.desc()).limit(bindparam("newest"))


ROUND_SIZES = _of_newest_rounds([_length(rounds.c[name]) for name in ROUND_TEXTS])
ROUND_STARTS = _of_newest_rounds([*OTHER_COLUMNS, *_starts_of(rounds, ROUND_TEXTS)])


def round_sizes(connection: Connection, execution_id: str, newest: int) -> list[int]:
    """Return the lengths of the newest rounds' texts."""
    rows = connection.execute(ROUND_SIZES, {"key": execution_id, "newest": newest})
    return [size or 0 for row in rows for size in row]


def round_starts(connection: Connection, execution_id: str, newest: int, *, most: int) -> list[Row[Any]]:
    """Return the newest rounds, oldest first, with the beginnings of their texts."""
    return list(connection.execute(ROUND_STARTS, {"key": execution_id, "newest": newest, "most": most}))[::-1]


QUESTION = select(executions.c.gate).where(MINE)
QUESTION_START = select(_start(executions.c.gate, MOST)).where(MINE)


def question(connection: Connection, execution_id: str) -> dict[str, Any] | None:
    """Return a waiting execution's question; None if it cannot be read."""
    stored = connection.execute(QUESTION, {"key": execution_id}).scalar_one_or_none()
    return stored if integrity.is_question(stored) else None


def question_start(connection: Connection, execution_id: str, *, most: int) -> tuple[dict[str, Any], str | None]:
    """Return the `fields` at the beginning of a waiting execution's question."""
    stored = connection.execute(QUESTION_START, {"key": execution_id, "most": most}).scalar_one_or_none()
    return fields(stored) if isinstance(stored, str) else ({}, None)
