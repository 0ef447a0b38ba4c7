"""Databases for tests: a sample of release 0.1, and throw-away ones on PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.find_postgres import CANDIDATES, usable
from scripts.stack.database import ThrowAwayDatabase

SAMPLE = Path(__file__).parent.parent / "samples" / "0.1.0" / "crew-service.sql"


def sqlite_sample(folder: Path) -> str:
    """A database that release 0.1 left behind when it was killed."""
    path = folder / "of-release-0.1.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(SAMPLE.read_text())
    connection.close()
    return str(path)


@contextmanager
def on_postgresql() -> Iterator[ThrowAwayDatabase]:
    """A database of its own, dropped at the end."""
    server = os.environ.get("CREW_TESTS_POSTGRES") or next(filter(usable, CANDIDATES), None)
    if not server:
        pytest.skip("needs PostgreSQL: CREW_TESTS_POSTGRES=postgresql://user@host:port/name")
    database = ThrowAwayDatabase(server)
    try:
        yield database
    finally:
        database.drop()
