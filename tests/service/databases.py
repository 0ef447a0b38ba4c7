"""Databases for tests: a sample of release 0.1, and throw-away ones on PostgreSQL."""

from __future__ import annotations

import atexit
import functools
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from crew_service.storage.database import Database
from crew_service.storage.states import State
from crew_service.storage.tables import executions
from scripts.find_postgres import WANTED, server_url
from scripts.stack.database import ThrowAwayDatabase

TIMES = {"created_at": 1.0, "due_at": 1.0, "updated_at": 1.0}
SAMPLE = Path(__file__).parent.parent / "samples" / "0.1.0" / "crew-service.sql"


def sqlite_sample(folder: Path) -> str:
    """A database that release 0.1 left behind when it was killed."""
    path = folder / "of-release-0.1.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(SAMPLE.read_text())
    connection.close()
    return str(path)


@functools.cache
def _new_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        Database(str(path)).close()
        return path.read_bytes()


def new_sqlite(path: Path) -> Path:
    """Put a new database there, as the service makes it: applying all migrations takes half of a start."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(_new_file())
    return path


@functools.cache
def _new_on(server: str) -> str:
    database = ThrowAwayDatabase(server)
    atexit.register(database.drop)
    Database(database.url).close()
    return database.name


@contextmanager
def on_postgresql(*, is_empty: bool = False) -> Iterator[ThrowAwayDatabase]:
    """A database of its own, dropped at the end: as the service makes a new one, or without tables."""
    server = server_url()
    if not server:
        pytest.skip(WANTED)
    database = ThrowAwayDatabase(server) if is_empty else ThrowAwayDatabase(server, template=_new_on(server))
    try:
        yield database
    finally:
        database.drop()


def put(database: Database, execution_id: str, kickoff_id: str | None = None, **values: Any) -> None:
    """Store an execution that nothing runs."""
    row = {"id": execution_id, "kickoff_id": kickoff_id or execution_id, "state": State.RUNNING, **TIMES}
    with database.writing() as connection:
        connection.execute(insert(executions).values(**{**row, "inputs": {}, "asked": [], **values}))
