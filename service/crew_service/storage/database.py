"""Access to the database: transactions are durable once their block exits; its failures raise `DatabaseUnavailable`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import ArgumentError, DatabaseError, DataError, NoResultFound, SQLAlchemyError
from sqlalchemy.sql import Select

from crew_service.storage import clock, engines, file_lock, location, schema
from crew_service.storage.availability import (
    LOCKED,
    Availability,
    DatabaseUnavailable,
    FileUnusable,
    cause_of,
    is_of_value,
)
from crew_service.storage.writer_turn import Busy, Turns, WriterTurn

PROMPT = 0.1  # seconds to wait for a file that is being replaced


class DatabaseUnusable(Exception):
    """The database cannot be opened."""


class Database:
    """An open database; with `serve`, a SQLite file is locked, since a second service would run the same executions.

    :param connections: how many are kept open to a database server for reads, and as many for writes
    """

    def __init__(self, database: str, *, serve: bool = False, connections: int = engines.CONNECTIONS) -> None:
        self.availability = Availability()
        self.erased = threading.Event()  # a secret was erased, so the write-ahead log must be emptied too
        self.erased.set()  # perhaps by a killed process
        self._held = contextlib.ExitStack()
        self._turn = WriterTurn(self._begin)
        self._connections = Turns(engines.most(connections))
        self._peeking = threading.Lock()
        named = repr(location.shown(database))
        try:
            url = location.url_of(database)
            self._file = location.file_of(url)
            self._serves = serve
            if serve and self._file:
                self._held.enter_context(file_lock.held(self._file, named=database))
            self._open(url, connections)
        except schema.OtherVersion:
            self._held.close()
            raise DatabaseUnusable(
                f"The database {named} is from a different version; move it, or specify another one."
            ) from None
        except schema.EarlierInUse:
            raise DatabaseUnusable(
                f"The database {named} is from an earlier release and a service is using it, so it was not migrated. "
                "Use the command of the service's release, or upgrade the service first."
            ) from None
        except location.InMemory:
            raise DatabaseUnusable(
                f"The database {named} is in memory and would not persist; specify a file."
            ) from None
        except (ArgumentError, DatabaseError, ImportError, OSError, location.NoLocation) as error:
            self._held.close()
            reason = getattr(error, "orig", None) or getattr(error, "strerror", None) or _told(error)
            line = str(reason).partition("\n")[0].rstrip(".")
            raise DatabaseUnusable(f"The database {named} cannot be used: {line}.") from None

    @property
    def is_sqlite(self) -> bool:
        return self._file is not None

    def _open(self, url: Any, connections: int) -> None:
        if self._file:
            with contextlib.suppress(FileExistsError):
                self._file.touch(mode=0o600, exist_ok=False)  # it holds webhook credentials
            # Opened first and closed last: closing any descriptor of a file drops this process's locks on it.
            self._opened = self._file.open("rb", buffering=0)
            self._held.callback(lambda: self._opened.close())
            if not location.size(self._opened) and self._is_served_by_another():
                raise location.NoLocation("a service is using it, and the file is incomplete")
            self._identity = _identity(os.fstat(self._opened.fileno()))
            self._engines = engines.sqlite(self._file)
        else:
            self._engines = engines.server(url, connections)
        self._clock = clock.Clock(self._engines.reader)
        self._clock.ask()
        self._bring_up_to_date()
        self._peeker = self._engines.reader.connect() if self._file else None
        self.peeks_at_small = self._peeker is not None and engines.refuse_large(self._peeker)

    def _bring_up_to_date(self) -> None:
        with self._engines.writer.begin() as connection:
            schema.bring_up_to_date(connection, self._is_served_by_another)

    def _is_served_by_another(self) -> bool:
        """Return whether another service is using the SQLite file.

        On PostgreSQL, this does not matter: earlier releases can use a migrated database.
        """
        return self._file is not None and not self._serves and file_lock.is_held(self._file)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection for reading; each statement sees everything committed before it began."""
        with self._blamed(), self._engines.reader.connect() as connection:
            yield connection

    def peek(self, query: Select[Any], key: str) -> Row[Any] | None:
        """Fetch a row by its key on a dedicated connection, because taking one from the pool costs as much as the read.

        If `peeks_at_small`, also return None for a row with a large value.
        """
        if self._peeker is None:
            with self.reading() as connection:
                return connection.execute(query, {"key": key}).one_or_none()
        with self._blamed(), self._peeking, contextlib.suppress(DataError):  # a value is too large
            if self._peeker is None:  # since a moment ago: the file was replaced by one that cannot be used
                raise Busy
            return self._peeker.execute(query, {"key": key}).one_or_none()
        return None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open one transaction; it is durable once the block exits without an error."""
        with self._blamed(), self._transaction() as connection:
            yield connection
        self.availability.works()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        if self.is_sqlite:
            with self._turn.writing() as connection:
                yield connection
            return
        with self._connections.taken(engines.POOL_TIMEOUT), self._engines.writer.begin() as connection:
            yield connection

    def _begin(self, seconds: float) -> Connection:
        """Begin a transaction on SQLite, waiting up to `seconds` for other processes."""
        connection = self._engines.writer.connect()
        try:
            connection.execution_options(**{engines.BUSY: seconds})
            connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection

    def keep_out_earlier_releases(self, oldest: str) -> None:
        """Keep releases whose last migration precedes `oldest` from claiming executions; on SQLite, none can anyway."""
        if self.is_sqlite:
            return
        with self.writing() as connection:
            if schema.keep_out_earlier(connection, oldest):
                return
            raise DatabaseUnusable(
                "A service of an earlier release is using this database and does not support the tool rules of these "
                "crews. Stop it first, or start without these rules."
            )

    def keeps_out_earlier(self, oldest: str) -> bool:
        """Keep out earlier releases; return False and change nothing if one is running."""
        try:
            self.keep_out_earlier_releases(oldest)
        except DatabaseUnusable:
            return False
        return True

    def now(self) -> float:
        """Return the current time by the database's clock, in seconds since 1970."""
        return self._clock.now()

    def forget_erased(self) -> bool:
        """Empty the write-ahead log, which still contains data erased from the tables; return False if in use."""
        if not self.is_sqlite:
            return True
        with self._blamed(), self._turn.alone(), self._engines.reader.connect() as connection:
            return engines.empty_log(connection)

    def close(self) -> None:
        if self._peeker is not None:
            self._peeker.close()
        self._engines.dispose()
        self._held.close()

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Turn the database's own failures into `DatabaseUnavailable`, without any SQL in the message."""
        try:
            self._check_file()
            yield
        except Busy:
            raise DatabaseUnavailable(LOCKED if self._turn.is_locked else "The database is busy.") from None
        except NoResultFound:  # a row was deleted in the meantime, so the database works
            raise
        except (SQLAlchemyError, FileUnusable, self._engines.driver_error) as error:
            if is_of_value(error):
                raise
            raise DatabaseUnavailable(self.availability.failed(error), cause_of(error)) from None

    def _check_file(self) -> None:
        """Fail if the file is missing; reopen it if it was replaced, since SQLite would keep writing to the old one."""
        if self._file is None or self._is_current(self._file):
            return
        # The event loop must not wait for long; callers repeat their requests.
        if not self._peeking.acquire(timeout=PROMPT):
            raise Busy
        try:
            with self._turn.alone(PROMPT):  # the next writer must not join a transaction on the old file
                if not self._is_current(self._file):
                    self._reopen(self._file)
        finally:
            self._peeking.release()

    def _is_current(self, path: Path) -> bool:
        try:
            return _identity(path.stat()) == self._identity
        except OSError:
            raise FileUnusable("the database file was moved away") from None

    def _reopen(self, path: Path) -> None:
        """Reopen the path after its file was replaced, usually by a restored copy."""
        with contextlib.ExitStack() as undo:
            try:
                file = undo.enter_context(path.open("rb", buffering=0))
            except OSError as error:
                raise FileUnusable(f"unable to open the database file: {error.strerror}") from None
            if not location.is_complete(file):
                raise FileUnusable("the database file is incomplete")
            self._part_with_log(file)
            engines.try_lock(path, PROMPT)
            if self._peeker is not None:
                self._peeker.close()
                self._peeker = None
            self._engines.dispose()
            undo.callback(self._engines.dispose)
            try:
                self._bring_up_to_date()
            except schema.OtherVersion:
                raise FileUnusable("the database file is from a different version") from None
            self._peeker = self._engines.reader.connect()
            undo.pop_all()
        engines.refuse_large(self._peeker)
        self._opened.close()
        self._opened, self._identity = file, _identity(os.fstat(file.fileno()))

    def _part_with_log(self, new: BinaryIO) -> None:
        """Empty the old file's write-ahead log, unless the new file is a copy of the old one.

        SQLite finds the log by its name, and applies it to the new file: that is right only for a copy.
        """
        if self._peeker is None or location.same_content(new, self._opened):
            return
        if not engines.empty_log(self._peeker):
            raise Busy


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _told(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"its driver {error.name} is not installed"
    return str(error) if isinstance(error, location.NoLocation) else type(error).__name__
