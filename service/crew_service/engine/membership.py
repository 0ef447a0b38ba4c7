"""This process's membership in the group that shares a database: sends heartbeats and removes silent processes."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from uuid import uuid4

from crew_service.engine.background import Background
from crew_service.storage import claims
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database

log = logging.getLogger(__name__)

PAUSE = 3.0  # seconds between heartbeats
DEAD_AFTER = 18.0  # seconds without a heartbeat, measured by this process


def keep_out_earlier(database: Database, oldest: str) -> None:
    """Keep out earlier releases; first remove their dead processes, because there may be nobody else left to do so."""
    if database.keeps_out_earlier(oldest):
        return
    with database.reading() as connection:
        earlier = claims.beats(connection)
    time.sleep(DEAD_AFTER)
    for process_id, beat in earlier.items():
        _bury(database, process_id, beat)
    database.keep_out_earlier_releases(oldest)


def _bury(database: Database, process_id: str, beat: int) -> None:
    with database.writing() as connection:
        moved = claims.remove_process(connection, process_id, beat=beat, now=database.now())
    if moved is not None:
        log.warning("process %s is not responding; its executions continue elsewhere, count=%d", process_id, moved)


class Membership:
    """Registers this process and removes others that stop responding.

    :param on_loss: called when others have removed this process and taken over its executions, or a restored database
        does not list it
    """

    def __init__(self, database: Database, *, on_loss: Callable[[], None]) -> None:
        self._database = database
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, float]] = {}  # by process: its heartbeat count, and when that last increased
        self._looked_at = float("-inf")
        self.loop = Background("membership", self._step, pause=PAUSE, longest=DEAD_AFTER / 6)
        self.id = ""

    def start(self) -> None:
        self._register()
        if not self._database.is_sqlite:  # only one process uses a SQLite file
            self.loop.start()

    def stop(self) -> None:
        """Unregister, so that others can claim its executions at once."""
        self.loop.stop()
        with contextlib.suppress(DatabaseUnavailable), self._database.writing() as connection:
            claims.unregister(connection, self.id, now=self._database.now())

    def rejoin(self) -> None:
        """Register again after being removed; any thread that notices the removal may call this."""
        with self._lock:
            with self._database.reading() as connection:
                if self.id in claims.beats(connection):
                    return  # another thread got there first
            log.warning("this process was no longer registered in the database; its executions are queued again")
            self._on_loss()
            self._register()

    def _register(self) -> None:
        process_id = str(uuid4())
        with self._database.writing() as connection:
            orphans = claims.register(
                connection,
                process_id,
                host=socket.gethostname(),
                alone=self._database.is_sqlite,
                now=self._database.now(),
            )
        self.id = process_id
        if orphans:
            log.warning("executions recovered, count=%d", orphans)

    def probe(self) -> None:
        """Write one heartbeat, which also shows whether the database is writable."""
        with self._database.writing() as connection:
            alive = claims.beat(connection, self.id)
        if not alive:
            self.rejoin()

    def _step(self) -> None:
        self.probe()
        with self._database.reading() as connection:
            beats = claims.beats(connection)
        for process_id in self._silent(beats, time.monotonic()):
            _bury(self._database, process_id, beats[process_id])

    def _silent(self, beats: dict[str, int], now: float) -> list[str]:
        """Return the processes whose count has stopped increasing, ignoring times when this process could not check."""
        if now - self._looked_at > DEAD_AFTER / 2:
            self._seen.clear()
        self._looked_at = now
        self._seen = {
            process_id: (beat, self._seen[process_id][1] if self._seen.get(process_id, (-1,))[0] == beat else now)
            for process_id, beat in beats.items()
            if process_id != self.id
        }
        return [process_id for process_id, (_, since) in self._seen.items() if now - since >= DEAD_AFTER]
