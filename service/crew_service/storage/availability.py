"""Tracks whether the database is usable. Each change is logged once, however many requests and threads notice it."""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy.exc import DBAPIError, StatementError

log = logging.getLogger(__name__)

QUIET = 60.0  # seconds between identical log lines

# What only a value can cause, by SQLSTATE: invalid data, exceeded limits, and constraints, except those of other rows.
VALUE_CLASSES = ("22", "23", "54")
RACES = ("23001", "23503", "23505", "23P01")
VALUE_NAMES = ("SQLITE_TOOBIG", "SQLITE_MISMATCH", "SQLITE_CONSTRAINT_NOTNULL", "SQLITE_CONSTRAINT_CHECK")
# SQLite's texts for them: Python 3.10 reports no names, and "malformed JSON" has only a general one.
VALUE_TEXTS = ("malformed JSON", "too big", "datatype mismatch", "NOT NULL constraint", "CHECK constraint")
VALUE_ERRORS = ("DataError", "OverflowError", "UnicodeError", "UnicodeEncodeError")  # raised before anything is sent
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
    "permission denied": "The database cannot be used: a privilege is missing.",
    "i/o error": "The database cannot be used: the disk reports an error.",
}
UNREACHABLE = "The database cannot be reached."


class DatabaseUnavailable(Exception):
    """The database is currently unusable. The text is a sentence for callers and reveals no internals.

    :param cause: names the database's own error, to tell the same one from another; empty if it reported none
    """

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause


class FileUnusable(Exception):
    """The database file was moved, or replaced by one that cannot be opened."""


def is_of_value(error: Exception) -> bool:
    """Return whether a value is at fault, so that trying again will not help; any other error may pass."""
    if isinstance(error, DBAPIError):
        return not error.connection_invalidated and _refuses_value(error.orig)
    if isinstance(error, StatementError):  # raised while the values were prepared
        return isinstance(error.orig, TypeError | ValueError | OverflowError)
    return _refuses_value(error)


def _refuses_value(error: BaseException | None) -> bool:
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if code:
        return code.startswith(VALUE_CLASSES) and code not in RACES
    if getattr(error, "sqlite_errorname", None) in VALUE_NAMES:
        return True
    return type(error).__name__ in VALUE_ERRORS or any(part in str(error) for part in VALUE_TEXTS)


def cause_of(error: Exception) -> str:
    """Return what distinguishes a database's errors: its code, or the class and the beginning of its text."""
    origin = getattr(error, "orig", None) or error
    code = getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)
    return code or f"{type(origin).__name__}: {str(origin)[:80]}"


def sentence(error: Exception) -> str:
    reason = str(getattr(error, "orig", None) or error).lower()
    return next((text for word, text in SENTENCES.items() if word in reason), UNREACHABLE)


class Availability:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._logged: dict[str, float] = {}
        self.progressed_at = float("-inf")  # when an execution's progress was last stored, by the monotonic clock

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
