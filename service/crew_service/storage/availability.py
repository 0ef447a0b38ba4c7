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
# What no value can cause, even if the database refuses it for one write alone: lost connections, access, conflicts,
# resources, locks, shutdowns, the disk.
DATABASE_CLASSES = ("08", "25006", "28", "40", "42501", "53", "55", "57P", "58")
FULL = "The database cannot be written to: the disk is full."
READ_ONLY = "The database cannot be written to: it is read-only."
LOCKED = "The database is locked by another process."
NO_PRIVILEGE = "The database cannot be used: a privilege is missing."
DISK_ERROR = "The database cannot be used: the disk reports an error."
OF_CODES = {"25006": READ_ONLY, "42501": NO_PRIVILEGE, "53100": FULL, "55P03": LOCKED, "58030": DISK_ERROR}
SENTENCES = {
    "full": FULL,
    "no space": FULL,
    "readonly": READ_ONLY,
    "read-only": READ_ONLY,
    "locked": LOCKED,
    "lock timeout": LOCKED,
    "moved away": "The database cannot be used: its file was moved.",
    "is incomplete": "The database cannot be used: its file is incomplete.",
    "different version": "The database cannot be used: its file is from a different version.",
    "unable to open": "The database cannot be used: its file cannot be opened.",
    "permission denied": NO_PRIVILEGE,
    "i/o error": DISK_ERROR,
}
UNREACHABLE = "The database cannot be reached."


class DatabaseUnavailable(Exception):
    """The database is currently unusable. The text is a sentence for callers and reveals no internals.

    :param cause: tells an error that one write may cause from another; empty if no write can be at fault
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
    if code := _code(error):
        return code.startswith(VALUE_CLASSES) and code not in RACES
    if getattr(error, "sqlite_errorname", None) in VALUE_NAMES:
        return True
    return type(error).__name__ in VALUE_ERRORS or any(part in str(error) for part in VALUE_TEXTS)


def cause_of(error: Exception) -> str:
    """Return what distinguishes an error that one write may cause: its code, or its class and how its text begins.

    It is empty for what is the database's own trouble, and for what no statement has caused.
    """
    origin, code = getattr(error, "orig", None) or error, _code(error)
    if code:
        return "" if code.startswith(DATABASE_CLASSES) else code
    is_known = sentence(error) != UNREACHABLE or not getattr(error, "statement", None)
    return "" if is_known else f"{type(origin).__name__}: {str(origin)[:80]}"


def _code(error: BaseException | None) -> str | None:
    origin = getattr(error, "orig", None) or error
    return getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)


def sentence(error: Exception) -> str:
    if known := OF_CODES.get(_code(error) or ""):
        return known
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
