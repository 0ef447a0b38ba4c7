"""Tracks whether the database is usable. Each change is logged once, however many requests and threads notice it."""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    TimeoutError,
)

log = logging.getLogger(__name__)

QUIET = 60.0  # seconds between identical log lines

TOO_MUCH = "54"  # PostgreSQL's class of errors for exceeded limits, such as that of the nesting of JSON
LOCKED = "The database is locked by another process."
SENTENCES = {
    "full": "The database cannot be written to: the disk is full.",
    "no space": "The database cannot be written to: the disk is full.",
    "readonly": "The database cannot be written to: it is read-only.",
    "read-only": "The database cannot be written to: it is read-only.",
    "locked": LOCKED,
    "lock timeout": LOCKED,
    "moved away": "The database cannot be used: its file was moved.",
    "is incomplete": "The database cannot be used: its file is incomplete.",
    "different version": "The database cannot be used: its file is from a different version.",
    "unable to open": "The database cannot be used: its file cannot be opened.",
    "i/o error": "The database cannot be used: the disk reports an error.",
}
UNREACHABLE = "The database cannot be reached."


class DatabaseUnavailable(Exception):
    """The database is currently unusable. The text is a sentence for callers and reveals no internals."""


class FileUnusable(Exception):
    """The database file was moved, or replaced by one that cannot be opened."""


def is_trouble(error: Exception) -> bool:
    """Return whether the database is at fault, rather than the statement or its values."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    mistakes = (IntegrityError, ProgrammingError, DataError, NotSupportedError)
    if isinstance(error, DatabaseError | InterfaceError):
        return not isinstance(error, mistakes) and not _is_refused_value(error.orig)
    return isinstance(error, TimeoutError)


def _is_refused_value(error: BaseException | None) -> bool:
    """Return whether the drivers call this an operational error, although trying again will not help."""
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
    return code.startswith(TOO_MUCH) or "malformed JSON" in str(error)


def sentence(error: Exception) -> str:
    reason = str(getattr(error, "orig", None) or error).lower()
    return next((text for word, text in SENTENCES.items() if word in reason), UNREACHABLE)


class Availability:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._logged: dict[str, float] = {}

    @property
    def problem(self) -> str | None:
        """The problem since the last successful write, if any."""
        return self._problem

    def failed(self, error: Exception) -> str:
        """Record a failure; return the sentence for callers."""
        problem = self._problem = sentence(error)  # another thread may succeed, and clear it, at any moment
        if self._may_log(problem):
            reason = str(getattr(error, "orig", None) or error).partition("\n")[0][:300]
            log.error("%s Executions and webhooks wait until it can be used again. (%s)", problem, reason)
        return problem

    def works(self) -> None:
        """Record a successful write."""
        if self._problem is not None:
            self._problem = None
            if self._may_log("works"):
                log.warning("The database can be used again.")

    def _may_log(self, what: str) -> bool:
        """Return whether to log this now; intermittent trouble is logged no more often than permanent trouble."""
        with self._lock:
            due = time.monotonic() - self._logged.get(what, float("-inf")) >= QUIET
            if due:
                self._logged[what] = time.monotonic()
        return due
