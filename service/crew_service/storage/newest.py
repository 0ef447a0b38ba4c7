"""Reads the newest executions for a list along an index, so that other stored data does not slow it down."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import and_, or_, select, union_all
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement, Select

from crew_service.storage.states import State
from crew_service.storage.tables import executions

Position = tuple[float, str]  # an execution's time and id, which define the order of lists


def newest(
    connection: Connection,
    columns: Sequence[ColumnElement[Any]],
    *,
    crew: str | None,
    owner: str | None,
    dag_id: str | None = None,
    states: Collection[State] = (),
    before: Position | None = None,
    limit: int,
) -> list[Row[Any]]:
    """Return the newest executions first; None means any crew, owner or DAG, and no states means any state.

    :param columns: must include `created_at` and `id`
    """
    query = _in_order(select(*columns), limit)
    for column, value in ((executions.c.crew, crew), (executions.c.owner, owner), (executions.c.dag_id, dag_id)):
        if value is not None:
            query = query.where(column == value)
    if before:
        query = query.where(follows(executions, before))
    if not states:
        return list(connection.execute(query))
    # One subquery per state, since a combined one would use an index over all states; in one statement, so that an
    # execution whose state changes in the meantime is neither missed nor returned twice.
    parts = [select(query.where(executions.c.state == state).subquery()) for state in states]
    return sorted(connection.execute(union_all(*parts)), key=position, reverse=True)[:limit]


def position(row: Row[Any]) -> Position:
    return row.created_at, row.id


def follows(table: Any, place: Position) -> ColumnElement[bool]:
    """Return the condition for what a list shows after this place; an index finds where that begins."""
    moment, last = place
    return and_(table.c.created_at <= moment, or_(table.c.created_at < moment, table.c.id < last))


def _in_order(query: Select[Any], limit: int) -> Select[Any]:
    return query.order_by(executions.c.created_at.desc(), executions.c.id.desc()).limit(limit)
