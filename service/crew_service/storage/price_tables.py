"""The default prices of models, which all machines share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.engine import Connection

from crew_service.storage.tables import prices
from crew_service.storage.transactions import lock_name


def sources(connection: Connection) -> list[str]:
    return list(connection.execute(select(prices.c.source)).scalars())


def entries(connection: Connection, source: str) -> dict[str, Any]:
    stored = connection.execute(select(prices.c.entries).where(prices.c.source == source)).scalar_one_or_none()
    return stored if isinstance(stored, dict) else {}


def put(connection: Connection, source: str, table: dict[str, Any]) -> None:
    """Store a table unless another machine has just done so."""
    lock_name(connection, "prices")
    if source not in sources(connection):
        connection.execute(insert(prices), {"source": source, "entries": table})
