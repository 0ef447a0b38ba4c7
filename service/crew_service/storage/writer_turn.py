"""SQLite has one writer: this process's threads queue here, where waiting is fair and short."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

WAIT = 8.0  # seconds that a writer waits in total: for its turn and for other processes
LEAST = 0.2  # seconds that it waits if others have waited before it
KNOWN = 2 * WAIT  # seconds after a wait started, or failed, during which the file counts as locked


class Busy(Exception):
    """Waiting for the turn took too long."""


class WriterTurn:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._waits_since: float | None = None  # for another process, by the monotonic clock
        self._seen_at = 0.0  # when that was last observed

    @contextlib.contextmanager
    def taken(self) -> Iterator[float]:
        """Wait for the turn and hold it; yield until when to wait for other processes, by the monotonic clock."""
        now = time.monotonic()
        until = max(self._since(now) + WAIT, now + LEAST)
        if not self._turn.acquire(timeout=until - now):
            raise Busy
        try:
            yield until
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Track how long starting a transaction takes: while one waits, later ones wait no longer than it."""
        now = time.monotonic()
        self._waits_since, self._seen_at = self._since(now), now
        try:
            yield
        except BaseException:
            self._seen_at = time.monotonic()
            raise
        self._waits_since = None

    @property
    def is_locked(self) -> bool:
        """Whether a writer of this process is waiting for another process, or did so a moment ago."""
        return self._waits_since is not None

    def _since(self, now: float) -> float:
        is_known = self._waits_since is not None and now - self._seen_at <= KNOWN
        return self._waits_since if is_known and self._waits_since is not None else now
