"""Stores printed output. Crews never wait for it, and a flood of output costs only one bounded write per second."""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy.engine import make_url

from crew_service.engine.background import Background
from crew_service.engine.printed import MOST, Printed
from crew_service.settings import Settings
from crew_service.storage import printed
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database

log = logging.getLogger(__name__)

PAUSE = 1.0  # seconds between writes of one execution's output
TICK = 0.25


class PrintedWriter:
    """Stores the printed output of a process's executions."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._secrets = _secrets_of_service(settings)
        self._lock = threading.Lock()
        self._waiting: dict[int, Printed] = {}
        self.loop = Background("printed", self._step, pause=TICK)
        self.start = self.loop.start

    def of(self, execution_id: str) -> Printed:
        """Return the object that receives a segment's printed output."""
        made = Printed(execution_id, self._want)
        made.hide(self._secrets)
        return made

    def write(self, one: Printed) -> None:
        """Store the remaining output; if the database is unavailable, retry in the background."""
        try:
            self._write(one, is_end=True)
        except DatabaseUnavailable:
            self._want(one)
        except Exception:
            self._lose(one)

    def stop(self) -> None:
        self.loop.stop()
        for one in self._due(now=float("inf")):
            self.write(one)

    def _want(self, one: Printed) -> None:
        with self._lock:
            self._waiting[id(one)] = one
        if time.monotonic() >= one.due_at:
            self.loop.wake()

    def _due(self, *, now: float) -> list[Printed]:
        with self._lock:
            due = [one for one in self._waiting.values() if now >= one.due_at]
            for one in due:
                del self._waiting[id(one)]
        return due

    def _step(self) -> None:
        due = self._due(now=time.monotonic())
        for place, one in enumerate(due):
            try:
                self._write(one)
            except DatabaseUnavailable:
                for left in due[place:]:
                    self._want(left)
                raise
            except Exception:  # affects one execution; the others' output is still stored
                self._lose(one)

    def _lose(self, one: Printed) -> None:
        log.exception("the crew's printed output is lost", extra={"execution_id": one.execution_id})
        one.stored()

    def _write(self, one: Printed, *, is_end: bool = False) -> None:
        with one.writing:
            one.due_at = time.monotonic() + PAUSE
            if text := one.take(is_end=is_end):
                with self._database.writing() as connection:
                    printed.add(connection, one.execution_id, text, most=MOST, follows_gap=one.follows_gap)
                one.stored()


def _secrets_of_service(settings: Settings) -> list[str]:
    tokens = [settings.token, *(pair[1] for pair in settings.user_tokens), *(each[2] for each in settings.crew_tokens)]
    keys = [settings.webhook_secret or "", settings.flow_webhook_secret]
    password = make_url(settings.database).password if "://" in settings.database else None
    return [*tokens, *keys, str(password or "")]
