"""The database: one writer at a time, readers never wait, and what is committed survives a kill -9."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Select, create_engine, event, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError

from .tables import VERSION, metadata

BUSY_TIMEOUT = "PRAGMA busy_timeout=30000"  # the command line writes to the same file
PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # an acknowledged kickoff survives the machine too, not only the process
    BUSY_TIMEOUT,
    "PRAGMA secure_delete=ON",  # erased credentials are not left in free pages
)


class StoreUnusable(Exception):
    """The database cannot be opened."""


def database_url(database: str) -> str:
    return database if "://" in database else f"sqlite:///{database}"


class Store:
    def __init__(self, database: str) -> None:
        try:
            url = make_url(database_url(database))
            self.is_sqlite = url.get_backend_name() == "sqlite"
            if self.is_sqlite and url.database and not Path(url.database).exists():
                Path(url.database).touch(mode=0o600)  # it holds the credentials of webhooks
            self._engine = create_engine(url, pool_size=20, max_overflow=40, hide_parameters=True)
            if self.is_sqlite:
                event.listen(self._engine, "connect", _prepare)
            self._create(database)
        except (ArgumentError, DatabaseError, ImportError, OSError) as error:
            reason = getattr(error, "orig", None) or getattr(error, "strerror", None) or type(error).__name__
            raise StoreUnusable(f"The database {database!r} cannot be used: {reason}.") from None
        self._writer = self._engine.execution_options()
        if self.is_sqlite:
            event.listen(self._writer, "begin", _begin)
        self._peeker = self._engine.connect() if self.is_sqlite else None
        self._peeking = threading.Lock()
        self._turn = threading.Lock()
        self.erased = threading.Event()  # something secret was erased; its traces in the log are to go too

    def _create(self, database: str) -> None:
        with self._engine.begin() as connection:
            fresh = not inspect(connection).has_table("executions")
            if self.is_sqlite and not fresh and connection.exec_driver_sql("PRAGMA user_version").scalar() != VERSION:
                raise StoreUnusable(f"The database {database!r} is of another version; move it away, or name another.")
            metadata.create_all(connection)
            if self.is_sqlite:
                connection.exec_driver_sql(f"PRAGMA user_version={VERSION}")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Each statement sees what was committed when it began."""
        with self._engine.connect() as connection:
            yield connection

    def peek(self, query: Select[Any], key: str) -> Row[Any] | None:
        """One row by its key, on a connection kept for this: to take one from the pool costs as much as the read."""
        if self._peeker is None:
            with self.reading() as connection:
                return connection.execute(query, {"key": key}).one_or_none()
        with self._peeking:
            return self._peeker.execute(query, {"key": key}).one_or_none()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction; it is durable once the block is left without an error."""
        with self._turn, self._writer.begin() as connection:
            yield connection

    def forget_erased(self) -> bool:
        """Empty the write-ahead log, which still holds what was erased from the tables; False when it is in use."""
        if not self.is_sqlite:
            return True
        with self._turn, self._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout=100")
            in_use = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar_one()
            connection.exec_driver_sql(BUSY_TIMEOUT)
        return not in_use

    def close(self) -> None:
        if self._peeker is not None:
            self._peeker.close()
        self._engine.dispose()


def _prepare(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver's guess
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # a later upgrade from reading to writing could fail
