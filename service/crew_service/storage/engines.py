"""Connects to SQLite files and database servers, with a limit on every wait."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.pool import QueuePool

from crew_service.storage import location
from crew_service.storage.json_values import loads

BUSY = "busy_seconds"  # execution option of a connection: how long its next transaction waits for other processes
BUSY_TIMEOUT = "PRAGMA busy_timeout=10000"  # the command line writes to the same file
PRAGMAS = (
    BUSY_TIMEOUT,
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # an acknowledged kickoff survives a crash of the machine, not only of the process
    "PRAGMA secure_delete=ON",  # free pages do not keep erased credentials
)
LIBPQ: dict[str, Any] = {
    "connect_timeout": 10,  # seconds
    # A server is considered gone after 20 s without an acknowledgement, also while it works on a statement.
    "tcp_user_timeout": 20_000,  # milliseconds
    "keepalives_idle": 10,  # seconds
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "application_name": "airflow-crew-service",
}
LOCK_TIMEOUT = "lock_timeout"  # of each connection, in its info
LOCK_SECONDS = 10.0
BEFORE_STATEMENT = 0.8  # of the statement timeout, which would otherwise end the wait, and not say that it was a lock
STATEMENT_SECONDS = "SELECT EXTRACT(EPOCH FROM CAST(current_setting('statement_timeout') AS interval))"
PREPARE = "prepare_threshold"  # psycopg's; a transaction pooler may run a prepared statement where it is unknown
SMALL = 64 * 1024  # bytes of a value that is read within microseconds
LIMIT_LENGTH = 0  # from sqlite3.h; `sqlite3` has defined it since Python 3.11
CONNECTIONS = 5  # kept open for reads, and as many for writes; a database server normally allows 100 in total
POOL_TIMEOUT = 15.0  # seconds


class Engines(NamedTuple):
    """The engines for reading and for writing."""

    reader: Engine
    writer: Engine

    @property
    def driver_error(self) -> type[Exception]:
        """The driver's own exception, which SQLAlchemy does not wrap when a connection returns to the pool."""
        driver: Any = self.writer.dialect.dbapi
        error: type[Exception] = driver.Error
        return error

    def dispose(self) -> None:
        """Close the unused connections of both engines."""
        self.reader.dispose()
        self.writer.dispose()


def sqlite(file: Path) -> Engines:
    # A cached statement keeps its last parameters: for a write, that may be a 10 MB output.
    reader, writer = _sqlite(file), _sqlite(file, cached_statements=0)
    event.listen(writer, "begin", _begin)
    return Engines(reader, writer)


def refuse_large(connection: Connection) -> bool:
    """Make SQLite refuse to read large values on this connection; return False if Python is too old (before 3.11).

    Comparing their lengths would read them, which takes 10 ms per 10 MB.
    """
    raw: Any = connection.connection.dbapi_connection
    if not hasattr(raw, "setlimit"):
        return False
    raw.setlimit(LIMIT_LENGTH, SMALL)
    return True


def empty_log(connection: Connection) -> bool:
    """Move all changes from the write-ahead log to the database file; return False if a reader prevents it."""
    connection.exec_driver_sql("PRAGMA busy_timeout=100")
    in_use = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar_one()
    connection.exec_driver_sql(BUSY_TIMEOUT)
    return not in_use


def try_lock(file: Path, seconds: float) -> None:
    """Fail if another process keeps a SQLite file locked for so long; connections of the engines wait longer."""
    uri = location.sqlite_url(file).database
    with contextlib.closing(sqlite3.connect(str(uri), uri=True, timeout=seconds, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def _sqlite(file: Path, **options: Any) -> Engine:
    engine = create_engine(
        location.sqlite_url(file),
        future=True,
        poolclass=QueuePool,
        connect_args={"check_same_thread": False, **options},
        pool_size=20,
        max_overflow=40,
        hide_parameters=True,
        json_deserializer=loads,
    )
    event.listen(engine, "connect", _prepare)
    return engine


def most(connections: int) -> int:
    """Return how many connections may be open at once for reads, and as many for writes, if so many are kept open."""
    return connections + connections // 2


def server(url: URL, connections: int) -> Engines:
    # Reads have connections of their own: switching one to autocommit and back takes as long as two reads.
    reader, writer = _server(url, connections, isolation_level="AUTOCOMMIT"), _server(url, connections)
    if _is_libpq(url):
        for each in (reader, writer):
            event.listen(each, "connect", _choose_lock_timeout)
        event.listen(reader, "connect", _limit_locks)
        event.listen(writer, "begin", _limit_locks_of_transaction)
    return Engines(reader, writer)


def _is_libpq(url: URL) -> bool:
    return url.drivername.partition("+")[2] in location.POSTGRESQL_DRIVERS


def _libpq_options(url: URL) -> dict[str, Any]:
    """Return the connection's options; statements are prepared only if the URL asks for it, and psycopg can do it."""
    options = {name: value for name, value in LIBPQ.items() if name not in url.query}
    if url.drivername.endswith("+psycopg"):
        options[PREPARE] = _threshold(url)
    return options


def _threshold(url: URL) -> int | None:
    value = str(url.query.get(PREPARE, "none")).lower()
    if value == "none":
        return None
    if not value.isdecimal():
        raise location.NoLocation(f"{PREPARE} must be a number or none")
    return int(value)


def _server(url: URL, connections: int, **options: Any) -> Engine:
    engine = create_engine(
        url.difference_update_query([PREPARE]),
        future=True,
        pool_size=connections,
        max_overflow=most(connections) - connections,
        pool_timeout=POOL_TIMEOUT,
        pool_pre_ping=True,  # so that a connection cut while idle does not fail a request
        hide_parameters=True,
        json_deserializer=loads,
        connect_args=_libpq_options(url) if _is_libpq(url) else {},
        **options,
    )
    event.listen(engine, "handle_error", _reconnect_after_ping)
    return engine


def _reconnect_after_ping(context: Any) -> None:
    """Replace the connection after any failed ping: psycopg calls one that is cut during it a programming error."""
    if getattr(context, "is_pre_ping", False):
        context.is_disconnect = True


def _prepare(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # `_begin` starts transactions, not the driver
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin(connection: Connection) -> None:
    seconds = connection.get_execution_options().get(BUSY)
    if seconds is not None:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={seconds * 1000:.0f}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # upgrading from reading to writing later could fail
    finally:
        if seconds is not None:
            connection.exec_driver_sql(BUSY_TIMEOUT)


def _choose_lock_timeout(connection: Any, record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(STATEMENT_SECONDS)
    seconds = float(cursor.fetchone()[0]) * BEFORE_STATEMENT
    cursor.close()
    connection.commit()
    record.info[LOCK_TIMEOUT] = f"{LOCK_TIMEOUT} = {min(seconds or LOCK_SECONDS, LOCK_SECONDS) * 1000:.0f}"


def _limit_locks(connection: Any, record: Any) -> None:
    """Limit the waits of reads, which have no transactions; behind a pooler, the setting would reach other clients."""
    cursor = connection.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    if cursor.fetchone()[0] == connection.info.backend_pid:  # a pooler reports a number of its own
        cursor.execute(f"SET {record.info[LOCK_TIMEOUT]}")
    cursor.close()
    connection.commit()


def _limit_locks_of_transaction(connection: Connection) -> None:
    connection.exec_driver_sql(f"SET LOCAL {connection.info[LOCK_TIMEOUT]}")
