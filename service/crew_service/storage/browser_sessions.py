"""Browser sessions, shared by every process on the database; each function runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import and_, delete, insert, select
from sqlalchemy.engine import Connection, Row

from crew_service.storage.tables import sessions

MOST = 1000  # sessions kept per crew and token holder; the oldest are dropped first


def add(connection: Connection, *, now: float, **values: Any) -> None:
    mine = and_(sessions.c.crew == values["crew"], sessions.c.owner.is_not_distinct_from(values["owner"]))
    connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
    newest = select(sessions.c.key_hash).where(mine).order_by(sessions.c.expires_at.desc())
    hashes = list(connection.execute(newest.limit(MOST - 1)).scalars())
    if len(hashes) == MOST - 1:
        connection.execute(delete(sessions).where(mine, sessions.c.key_hash.not_in(hashes)))
    connection.execute(insert(sessions).values(values))


def find(connection: Connection, hashes: Collection[str], crew: str, *, now: float) -> Row[Any] | None:
    query = select(sessions).where(
        sessions.c.key_hash.in_(hashes), sessions.c.crew == crew, sessions.c.expires_at > now
    )
    return connection.execute(query).first()


def remove(connection: Connection, hashes: Collection[str]) -> None:
    connection.execute(delete(sessions).where(sessions.c.key_hash.in_(hashes)))
