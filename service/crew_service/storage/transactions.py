"""Locks that last until the transaction ends, for cases in which row locks are not possible."""

from __future__ import annotations

import hashlib

from sqlalchemy import text
from sqlalchemy.engine import Connection


def lock_name(connection: Connection, name: str) -> None:
    """Lock a name until the transaction ends. SQLite needs no lock, since it allows only one writer at a time."""
    if connection.dialect.name == "postgresql":
        digest = hashlib.sha256(name.encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})
