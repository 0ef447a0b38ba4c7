"""Checks whether this process can do its work: the database accepts writes, and all threads are alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from crew_service.engine.background import Background
from crew_service.storage.availability import DatabaseUnavailable

__all__ = ["DatabaseUnavailable", "Health"]

WATCHED = 1.0  # seconds between calls to `watch`
FRESH = 1.0  # seconds for which a result is reused, because each check costs a write


class Health:
    def __init__(self, probe: Callable[[], None], loops: Collection[Background]) -> None:
        self._probe = probe
        self._loops = loops
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._problem: str | None = None

    def problem(self) -> str | None:
        """Return the problem as a sentence; None if all is well."""
        with self._lock:
            if time.monotonic() - self._asked_at > FRESH:
                self._problem = self._ask()
                self._asked_at = time.monotonic()
            return self._problem

    def dead(self) -> str | None:
        """Return why the process needs a restart, if it does; ignore the database, which a restart does not fix."""
        gone = next((loop for loop in self._loops if loop.is_gone), None)
        return f"The thread {gone.name!r} has ended and cannot start again; restart the service." if gone else None

    def watch(self) -> None:
        """Restart threads that have ended; call this every `WATCHED` seconds."""
        for loop in self._loops:
            loop.watch()

    def _ask(self) -> str | None:
        try:
            self._probe()
        except DatabaseUnavailable as error:
            return str(error)
        return next((loop.problem for loop in self._loops if loop.problem), None)
