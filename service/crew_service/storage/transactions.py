"""Locks for the time of a transaction, where rows cannot give them."""

from __future__ import annotations

import hashlib

from sqlalchemy import text
from sqlalchemy.engine import Connection


def lock_name(connection: Connection, name: str) -> None:
    """Hold a name until the transaction ends. SQLite has one writer at a time, which is lock enough."""
    if connection.dialect.name == "postgresql":
        digest = hashlib.sha256(name.encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})
