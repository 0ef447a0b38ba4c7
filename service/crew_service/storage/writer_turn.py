"""Threads in this process queue here to write, first come, first served: frequent writers do not overtake others.

SQLite has one writer, and each commit waits for the disk. So a thread that has written passes its turn and the open
transaction on to the next one, and the last one commits for all of them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

WAIT = 8.0  # seconds that a writer waits in total: for its turn and for other processes
LEAST = 0.2  # minimum seconds that it waits, however long others have waited
KNOWN = 2 * WAIT  # seconds after a wait started, or failed, during which the file is considered locked
MOST_TOGETHER = 32  # writers that share a commit


class Busy(Exception):
    """Waiting for the turn took too long."""


class Turns:
    """Lets `number` threads through at a time; each passes its turn to the one that has waited longest."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def take(self, seconds: float) -> None:
        """Wait for a turn; raise `Busy` after `seconds`."""
        with self._mutex:
            if self._free:
                self._free -= 1
                return
            passed = threading.Lock()
            passed.acquire()
            self._waiting.append(passed)
        if passed.acquire(timeout=max(seconds, 0.0)):
            return
        with self._mutex:
            if passed not in self._waiting:
                return  # the turn was passed on at the last moment
            self._waiting.remove(passed)
        raise Busy

    def pass_on(self) -> bool:
        """Pass the turn on; return False if nobody is waiting for it."""
        with self._mutex:
            return self._passed_on()

    def leave(self) -> None:
        with self._mutex:
            if not self._passed_on():
                self._free += 1

    def _passed_on(self) -> bool:
        if self._waiting:
            self._waiting.popleft().release()
            return True
        return False

    @contextlib.contextmanager
    def taken(self, seconds: float) -> Iterator[None]:
        """Wait for a turn and hold it."""
        self.take(seconds)
        try:
            yield
        finally:
            self.leave()


class Group:
    """An open transaction that several writers share."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.size = 0
        self._over = threading.Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Return once the transaction is committed; if the commit failed, raise its error."""
        self._over.wait()
        if self._error is not None:
            raise self._error

    def end(self, error: BaseException | None = None) -> None:
        """Commit the transaction or, after an error, roll it back."""
        self._error = error
        try:
            if error is None:
                self.connection.commit()
        except BaseException as failed:
            self._error = failed
            self.connection.invalidate()  # or SQLAlchemy would return it to the pool with its transaction open
            raise
        finally:
            self._over.set()
            self.connection.close()


class WriterTurn:
    """The turn to write to SQLite.

    :param begin: opens a connection and begins a transaction, waiting up to the given number of seconds for others
    """

    def __init__(self, begin: Callable[[float], Connection]) -> None:
        self._begin = begin
        self._turns = Turns(1)
        self._group: Group | None = None
        self._waits_since: float | None = None  # for another process, by the monotonic clock
        self._seen_at = 0.0  # when this wait was last observed

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Write in a transaction that is shared with waiting writers and committed on return."""
        until = self._take()
        try:
            group = self._group = self._group or Group(self._begun(until))
            part = group.connection.begin_nested()
        except BaseException as error:
            self._end(error)
            raise
        try:
            yield group.connection
        except BaseException as failed:
            if self._finish(group, part.rollback, failed):
                group.wait()  # it may have failed because of the others' writes
            raise
        if self._finish(group, part.commit):
            group.wait()

    @contextlib.contextmanager
    def alone(self, seconds: float = WAIT) -> Iterator[None]:
        """Hold the turn without a transaction."""
        self._turns.take(seconds)
        try:
            group, self._group = self._group, None
            if group is not None:
                with contextlib.suppress(Exception):  # its writers raise it
                    group.end()
            yield
        finally:
            self._turns.leave()

    @property
    def is_locked(self) -> bool:
        """Whether a writer in this process is waiting for another process, or was a moment ago."""
        return self._waits_since is not None

    def _take(self) -> float:
        """Take the turn; return the deadline, on the monotonic clock, for waiting for other processes."""
        now = time.monotonic()
        until = max(self._since(now) + WAIT, now + LEAST)
        self._turns.take(until - now)
        return until

    def _begun(self, until: float) -> Connection:
        """Begin a transaction and track its wait: while one waits, later ones wait no longer than it does."""
        now = time.monotonic()
        self._waits_since, self._seen_at = self._since(now), now
        try:
            connection = self._begin(max(until - now, 0.0))
        except BaseException:
            self._seen_at = time.monotonic()
            raise
        self._waits_since = None
        return connection

    def _finish(self, group: Group, end_part: Callable[[], None], failed: BaseException | None = None) -> bool:
        """End one writer's part; return whether the next writer continues the transaction."""
        try:
            end_part()
        except BaseException as error:  # SQLite has rolled back the whole transaction, because of `failed`
            cause = failed if isinstance(failed, SQLAlchemyError) else error
            self._end(cause)
            raise cause from None
        group.size += 1
        if group.size < MOST_TOGETHER and self._turns.pass_on():
            return True
        self._end()
        return False

    def _end(self, error: BaseException | None = None) -> None:
        group, self._group = self._group, None
        try:
            if group is not None:
                group.end(error)
        finally:
            self._turns.leave()

    def _since(self, now: float) -> float:
        is_known = self._waits_since is not None and now - self._seen_at <= KNOWN
        return self._waits_since if is_known and self._waits_since is not None else now
