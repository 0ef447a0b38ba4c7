"""Whether this process can do its work: the database takes writes, and the threads that run crews are alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from crew_service.storage.availability import DatabaseUnavailable

__all__ = ["DatabaseUnavailable", "Health"]

FRESH = 1.0  # seconds for which an answer is given again, since each costs a write
BEHIND = 60.0  # seconds without a sign of a thread, which otherwise gives one several times a second


class Health:
    def __init__(self, probe: Callable[[], None], seconds_behind: Callable[[], float]) -> None:
        self._probe = probe
        self._seconds_behind = seconds_behind
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._problem: str | None = None

    def problem(self) -> str | None:
        """A sentence on what is wrong; None when all is well."""
        with self._lock:
            if time.monotonic() - self._asked_at > FRESH:
                self._problem = self._ask()
                self._asked_at = time.monotonic()
            return self._problem

    def _ask(self) -> str | None:
        try:
            self._probe()
        except DatabaseUnavailable as error:
            return str(error)
        if self._seconds_behind() > BEHIND:
            return "The thread that starts executions does not answer; restart the service."
        return None
