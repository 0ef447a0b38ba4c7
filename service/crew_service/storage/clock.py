"""The clock for everything stored or signed: the database server's, because the clocks of its services may differ."""

from __future__ import annotations

import contextlib
import time

from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

FRESH = 15.0  # seconds until the server's clock is read again
POSTGRESQL = text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)")


class Clock:
    """Advances with the monotonic clock between readings, so that adjusting this machine's clock has no effect."""

    def __init__(self, reader: Engine) -> None:
        self._reader = reader
        self._is_asked = reader.dialect.name == "postgresql"
        self._ahead = 0.0  # relative to the monotonic clock
        self._asked_at = float("-inf")

    def now(self) -> float:
        """Return the seconds since 1970; for SQLite, by this machine's clock, as only one machine writes the file."""
        if not self._is_asked:
            return time.time()
        if time.monotonic() - self._asked_at > FRESH:
            self._asked_at = time.monotonic()
            with contextlib.suppress(SQLAlchemyError):
                self.ask()
        return time.monotonic() + self._ahead

    def ask(self) -> None:
        """Read the server's clock; if the server is down, raise an error and keep using the last reading."""
        if self._is_asked:
            with self._reader.connect() as connection:
                began = time.monotonic()
                self._ahead = float(connection.execute(POSTGRESQL).scalar_one()) - began
