"""Reads and writes executions; each function runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    JSON,
    Text,
    TypeDecorator,
    bindparam,
    case,
    cast,
    false,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.engine import Connection, Dialect, Row
from sqlalchemy.sql import ColumnElement, Select, Update

from crew_service.storage.engines import SMALL
from crew_service.storage.integrity import QUESTION
from crew_service.storage.json_values import JsonText
from crew_service.storage.newest import newest
from crew_service.storage.states import NOTE, Move, State
from crew_service.storage.tables import executions, results


def create(connection: Connection, **values: Any) -> None:
    connection.execute(insert(executions).values(state=State.QUEUED, asked=[], **values))


LISTED = [
    executions.c[name]
    for name in (
        *("id", "kickoff_id", "crew", "owner", "state", "created_at", "updated_at", "work_seconds"),
        *("completed_tasks", "current_task", "asked", "ended_at"),
    )
]
# What decides whether a request may change an execution; the other columns may be large.
HEAD = ("id", "kickoff_id", "crew", "owner", "state", "asked")
CHECKED = ("gate", "webhooks", "last_task", "last_step", "limits")  # not displayed; checked if small
LONGEST_ERROR = 10_000  # characters of an error in a list
LONG_ERROR = "The error is too long for a list; see the status."
CALM = 2.0  # seconds
MOST_OVERDUE = 100  # questions that are answered at a time

# Built once: building a statement costs several times as much as running it.
TASKS_OF = select(results.c.task).where(results.c.execution_id == bindparam("id")).order_by(results.c.position)


def status_query(names: tuple[str, ...]) -> Select[Any]:
    """Select only the columns that a poll reports: decoding the others takes longer than reading the row."""
    return _statuses(names).where(executions.c.kickoff_id == bindparam("key"))


def _statuses(names: tuple[str, ...]) -> Select[Any]:
    return select(*(executions.c[name] for name in ("id", "kickoff_id", "crew", "owner", "state", *names)))


KNOWN = status_query(())


class _AsStored(TypeDecorator[JsonText]):
    impl = Text
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> JsonText | None:
        return None if value is None else JsonText(value)


def completed_status_query(names: tuple[str, ...], *, is_sqlite: bool) -> Select[Any]:
    """Select a completed execution's status without decoding its output; skip other and unreadable executions."""
    output = [name for name in names if name in ("tasks", "output", "output_json")]
    whole = [type_coerce(cast(executions.c[name], Text), _AsStored).label(name) for name in output]
    query = status_query(tuple(name for name in names if name not in output)).add_columns(*whole)
    query = query.where(executions.c.state == State.COMPLETED)
    if is_sqlite:  # other databases checked it when it was written
        query = query.where(*(func.json_valid(func.coalesce(executions.c[name], "null")) for name in output))
    return query


def small_status_query(names: tuple[str, ...]) -> Select[Any]:
    """Select a status only if it can be read and decoded within microseconds."""
    large = (_length(executions.c[name]) > SMALL for name in _json(names))
    return status_query(names).where(not_(or_(false(), *large)))


def small_statuses_query(names: tuple[str, ...]) -> Select[Any]:
    """Select the statuses of several ids from PostgreSQL, in any order, each only if it is small."""
    is_wanted = executions.c.kickoff_id.in_(bindparam("keys", expanding=True))
    # The offset keeps PostgreSQL from measuring all other executions first, which it otherwise does with a small table.
    candidates = _statuses(names).where(is_wanted).offset(0).subquery()
    # The stored size is known without reading the value; a value that is stored compressed may still be long.
    large = (
        case((func.pg_column_size(candidates.c[name]) > SMALL, true()), else_=_length(candidates.c[name]) > SMALL)
        for name in _json(names)
    )
    return select(candidates).where(not_(or_(false(), *large)))


def _json(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if isinstance(executions.c[name].type, JSON)]


def _length(column: ColumnElement[Any]) -> ColumnElement[int]:
    return func.coalesce(func.length(cast(column, Text)), 0)


def by_id(connection: Connection, execution_id: str, names: tuple[str, ...] = ()) -> Row[Any] | None:
    return _by(connection, finders(names)[1], execution_id)


def _by(connection: Connection, query: Select[Any], some_id: str) -> Row[Any] | None:
    """Find one row. A caller's id may be any text, but PostgreSQL rejects text with a NUL character."""
    return None if "\0" in some_id else connection.execute(query, {"id": some_id}).one_or_none()


def by_either_id(connection: Connection, some_id: str, names: tuple[str, ...] = ()) -> Row[Any] | None:
    """Find an execution by the polled id or the kickoff's id; return the named columns, or all of them."""
    return _first(connection, finders(names), some_id)


def locked(connection: Connection, some_id: str, names: tuple[str, ...] = HEAD) -> Row[Any] | None:
    """Find an execution by either id, and lock its row until this transaction ends."""
    return _first(connection, [query.with_for_update() for query in finders(names)], some_id)


def _first(connection: Connection, queries: Iterable[Select[Any]], some_id: str) -> Row[Any] | None:
    rows = (_by(connection, query, some_id) for query in queries)
    return next((row for row in rows if row is not None), None)


@lru_cache
def finders(names: tuple[str, ...]) -> list[Select[Any]]:
    """Select an execution by its polled id, and by its own id."""
    query = select(*(executions.c[name] for name in names)) if names else select(executions)
    return [query.where(column == bindparam("id")) for column in (executions.c.kickoff_id, executions.c.id)]


def tasks_of(connection: Connection, execution_id: str) -> list[Any]:
    return list(connection.execute(TASKS_OF, {"id": execution_id}).scalars())


def latest(
    connection: Connection,
    *,
    crew: str | None,
    owner: str | None,
    limit: int,
    states: Collection[State] = (),
    more: Collection[str] = (),
) -> list[Row[Any]]:
    """Return the newest executions; None means any crew or owner, and no states means any state."""
    is_long = func.length(cast(executions.c.error, Text)) > LONGEST_ERROR
    error = case((is_long, literal(LONG_ERROR, executions.c.error.type)), else_=executions.c.error).label("error")
    columns = [*LISTED, *map(_if_small, CHECKED), *(executions.c[name] for name in more), error]
    return newest(connection, columns, crew=crew, owner=owner, states=states, limit=limit)


def overdue(connection: Connection, crews: Collection[str], *, now: float) -> list[Row[Any]]:
    """Return the executions of these crews whose question the service must answer itself, the oldest deadline first."""
    due = select(executions.c.id, executions.c.crew, executions.c.asked).where(executions.c.answer_by <= now)
    due = due.where(executions.c.state == State.WAITING, executions.c.crew.in_(crews)).order_by(executions.c.answer_by)
    return list(connection.execute(due.limit(MOST_OVERDUE)))


def _if_small(name: str) -> ColumnElement[Any]:
    """Return the column, so that lists detect unreadable values, but replace large ones with a readable constant."""
    column = executions.c[name]
    is_large = func.length(cast(column, Text)) > SMALL
    return case((is_large, literal(dict.fromkeys(QUESTION), column.type)), else_=column).label(name)


def move(connection: Connection, execution_id: str, step: Move, *, now: float, **values: Any) -> bool:
    """Make the move if the state allows it; return whether it was made."""
    query = update(executions).where(executions.c.id == execution_id, executions.c.state.in_(step.sources))
    done = connection.execute(query.values(state=step.target, claimed_by=None, updated_at=now, **values))
    return done.rowcount == 1


class Fence(NamedTuple):
    """The condition for a segment's next write: its own claim, and the number of writes it has made."""

    execution_id: str
    segment: int
    writes: int


class Calm(NamedTuple):
    """Counts writes that may become visible later: all of them, and those before the period of the latest one."""

    writes: int
    shown: int
    at: float | None

    @classmethod
    def of(cls, row: Row[Any]) -> Calm:
        return cls(row.calm_writes, row.calm_shown, row.calm_at)

    def next(self, now: float) -> Calm:
        return Calm(self.writes + 1, self.seen(now), now)

    def seen(self, now: float) -> int:
        """Return how many of these writes are visible: all writes in a period become visible together when it ends."""
        is_over = self.at is None or now // CALM != self.at // CALM
        return self.writes if is_over else self.shown

    @property
    def values(self) -> dict[str, Any]:
        return {"calm_writes": self.writes, "calm_shown": self.shown, "calm_at": self.at}


def write_fenced(connection: Connection, fence: Fence, step: Move, *, now: float, **values: Any) -> bool:
    """Write for the running segment; return False if another segment has the execution, or if it was stopped."""
    values |= {"state": step.target, "writes": fence.writes + 1, "updated_at": now}
    if step is not NOTE:
        values["claimed_by"] = None
    query = _fenced(step.sources, tuple(values))
    parameters = {f"of_{name}": value for name, value in fence._asdict().items()}
    parameters |= {f"new_{name}": value for name, value in values.items()}
    return connection.execute(query, parameters).rowcount == 1


@lru_cache
def _fenced(sources: frozenset[State], names: tuple[str, ...]) -> Update:
    query = update(executions).where(
        executions.c.id == bindparam("of_execution_id"),
        executions.c.segment == bindparam("of_segment"),
        executions.c.writes == bindparam("of_writes"),
        executions.c.state.in_(sorted(sources)),
    )
    return query.values({name: bindparam(f"new_{name}", type_=executions.c[name].type) for name in names})


def was_written(connection: Connection, fence: Fence, step: Move) -> bool:
    """Return whether that write succeeded after all and only the response to its commit was lost."""
    of_write = (executions.c.segment, executions.c.writes, executions.c.state)
    row = connection.execute(select(*of_write).where(executions.c.id == fence.execution_id)).one_or_none()
    wanted = (fence.segment, fence.writes + 1, step.target)
    return row is not None and tuple(row) == wanted


def ended(now: float) -> dict[str, Any]:
    """Return the columns to write when an execution ends; they erase data no longer needed, above all credentials."""
    return {"ended_at": now, "aged_from": now, "webhooks": None, "gate": None, "answer_by": None}


def add_result(
    connection: Connection, execution_id: str, position: int, task: Any, figures: Any = None, digest: str | None = None
) -> None:
    values = {"execution_id": execution_id, "position": position, "task": task, "figures": figures, "digest": digest}
    connection.execute(insert(results), values)  # passed separately: SQLAlchemy caches a statement with its values
