"""Deletes executions that have been over for `keep_days`, and empties the log of the database of erased secrets."""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy import delete, exists, select

from .store import Store
from .tables import answers, executions, outbox, results

log = logging.getLogger(__name__)

TICK = 0.5  # seconds within which erased secrets are gone from the log too
PAUSE = 60.0  # seconds between two looks for what is old
AT_ONCE = 500  # executions deleted in one transaction, so that kickoffs do not wait long


class Housekeeping:
    def __init__(self, store: Store, *, keep_days: float) -> None:
        self._store = store
        self._keep_seconds = keep_days * 86400
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="housekeeping", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _serve(self) -> None:
        next_round = 0.0
        while not self._stopping.wait(TICK):
            try:
                if time.monotonic() > next_round:
                    next_round = time.monotonic() + PAUSE
                    forget_old(self._store, before=time.time() - self._keep_seconds)
                self._erase()
            except Exception:
                log.exception("housekeeping failed; trying again")

    def _erase(self) -> None:
        if self._store.erased.is_set():
            self._store.erased.clear()
            if not self._store.forget_erased():
                self._store.erased.set()


def forget_old(store: Store, *, before: float) -> int:
    """Delete what ended before that moment and is told to everybody; the number of executions."""
    count = 0
    while deleted := _forget_some(store, before):
        count += deleted
    if count:
        log.info("forgot old executions count=%d", count)
    return count


def _forget_some(store: Store, before: float) -> int:
    told = ~exists().where(outbox.c.execution_id == executions.c.id)
    query = select(executions.c.id).where(executions.c.ended_at < before, told).limit(AT_ONCE)
    with store.writing() as connection:
        old = list(connection.execute(query).scalars())
        for column in (results.c.execution_id, answers.c.execution_id, executions.c.id):
            connection.execute(delete(column.table).where(column.in_(old)))
    return len(old)
