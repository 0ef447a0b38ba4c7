"""The newest executions of a list, read along an index: nothing that is stored beside them costs time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import or_, select, union_all
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement, Select

from crew_service.storage.states import State
from crew_service.storage.tables import executions

Position = tuple[float, str]  # the moment and the id of an execution, by which lists are ordered


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
    """Return them, the newest first; of every crew, of everybody, of every DAG, in every state where none is given.

    :param columns: `created_at` and `id` among them
    """
    query = _in_order(select(*columns), limit)
    for column, value in ((executions.c.crew, crew), (executions.c.owner, owner), (executions.c.dag_id, dag_id)):
        if value is not None:
            query = query.where(column == value)
    if before:
        moment, last = before
        query = query.where(
            executions.c.created_at <= moment, or_(executions.c.created_at < moment, executions.c.id < last)
        )
    if not states:
        return list(connection.execute(query))
    # A part for each state, since together they would be read along an index of all states; in one statement, so that
    # an execution whose state changes meanwhile is neither missed nor seen twice.
    parts = [select(query.where(executions.c.state == state).subquery()) for state in states]
    return sorted(connection.execute(union_all(*parts)), key=position, reverse=True)[:limit]


def position(row: Row[Any]) -> Position:
    return row.created_at, row.id


def _in_order(query: Select[Any], limit: int) -> Select[Any]:
    return query.order_by(executions.c.created_at.desc(), executions.c.id.desc()).limit(limit)
