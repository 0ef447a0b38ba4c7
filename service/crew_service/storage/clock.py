"""The time of all that is stored or signed: the database server's, since the clocks of its services may differ."""

from __future__ import annotations

import contextlib
import time

from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

FRESH = 15.0  # seconds for which the server's clock is not asked again
POSTGRESQL = text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)")


class Clock:
    """Goes on by the monotonic clock between two readings: a step of this machine's clock changes nothing."""

    def __init__(self, reader: Engine) -> None:
        self._reader = reader
        self._is_asked = reader.dialect.name == "postgresql"
        self._ahead = 0.0  # of the monotonic clock
        self._asked_at = float("-inf")

    def now(self) -> float:
        """Return seconds since 1970; a SQLite file is written by one machine, whose clock is the only one."""
        if not self._is_asked:
            return time.time()
        if time.monotonic() - self._asked_at > FRESH:
            self._asked_at = time.monotonic()
            with contextlib.suppress(SQLAlchemyError):
                self.ask()
        return time.monotonic() + self._ahead

    def ask(self) -> None:
        """Read the server's clock. It fails while the server is away, when the last reading goes on."""
        if self._is_asked:
            with self._reader.connect() as connection:
                began = time.monotonic()
                self._ahead = float(connection.execute(POSTGRESQL).scalar_one()) - began
