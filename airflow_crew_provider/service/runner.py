"""Gives queued executions a place in a bounded pool, one thread for each segment, and enforces the limits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from . import ledger
from .crews import Cancelled, Crew
from .segments import Segment
from .store import Store

log = logging.getLogger(__name__)

TICK = 0.25  # seconds between looks for work that another process queued
RECOVERY = 30.0  # seconds between looks for executions that nobody runs
GRACE = 5.0  # seconds that a cancelled segment has to return before its place is given away


class Runner:
    def __init__(
        self,
        store: Store,
        crew: Crew,
        *,
        workers: int,
        time_limit: float,
        fresh_ids: bool,
        posted: Callable[[], None],
    ) -> None:
        self._store = store
        self._crew = crew
        self._workers = workers
        self._time_limit = time_limit
        self._fresh_ids = fresh_ids
        self._posted = posted
        self._running: dict[str, Segment] = {}
        self._cancelled: dict[str, float] = {}
        self._lock = threading.Lock()
        self._recovered_at = 0.0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._dispatcher = threading.Thread(target=self._dispatch, name="dispatcher", daemon=True)

    def start(self) -> None:
        self._recover()
        self._dispatcher.start()

    def wake(self) -> None:
        self._wake.set()

    def cancel(self, execution_id: str, reason: str) -> None:
        with self._lock:
            segment = self._running.get(execution_id)
        if segment:
            segment.job.cancelled.set(reason)

    def running(self) -> int:
        return len(self._running)

    def stop(self) -> None:
        """Give running executions back to the queue; what does not return in time is recovered at the next start."""
        self._stopping.set()
        self._wake.set()
        self._dispatcher.join()
        deadline = time.monotonic() + GRACE
        for execution_id in list(self._running):
            self.cancel(execution_id, "the service stops")
        while self._running and time.monotonic() < deadline:
            time.sleep(0.02)

    def _recover(self) -> None:
        """After a crash, and after a segment whose end could not be written; only where no claim is under way."""
        self._recovered_at = time.monotonic()
        with self._store.writing() as connection:
            recovered = ledger.requeue_lost(connection, list(self._running), now=time.time())
        if recovered:
            log.warning("executions recovered, count=%d", recovered)

    def _dispatch(self) -> None:
        while not self._stopping.is_set():
            try:
                self._claim_all()
                self._enforce_limits()
                if time.monotonic() - self._recovered_at > RECOVERY:
                    self._recover()
            except Exception:
                log.exception("dispatch failed; trying again")
            self._wake.wait(TICK)
            self._wake.clear()

    def _claim_all(self) -> None:
        free = self._workers - len(self._running)
        if free <= 0:
            return
        with self._store.reading() as connection:
            waiting = ledger.due(connection, now=time.time(), limit=free)
        for execution_id in waiting:
            self._claim(execution_id)

    def _claim(self, execution_id: str) -> None:
        with self._store.writing() as connection:
            row = ledger.claim(connection, execution_id, now=time.time())
        if row is None:
            return
        segment = Segment(self._store, row, fresh_ids=self._fresh_ids, posted=self._posted)
        with self._lock:
            self._running[execution_id] = segment
        threading.Thread(target=self._run, args=(segment,), name=f"crew-{execution_id[:8]}", daemon=True).start()

    def _run(self, segment: Segment) -> None:
        log.info("running", extra={"execution_id": segment.execution_id})
        try:
            segment.run(self._crew)
        except Cancelled:
            if self._stopping.is_set():
                segment.requeue()
        except Exception:
            log.exception("segment lost", extra={"execution_id": segment.execution_id})
        finally:
            self._leave(segment)

    def _leave(self, segment: Segment) -> None:
        with self._lock:
            if self._running.get(segment.execution_id) is segment:
                del self._running[segment.execution_id]
        self._cancelled.pop(segment.execution_id, None)
        self._wake.set()

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for execution_id, segment in list(self._running.items()):
            if segment.job.cancelled.is_set():
                if now - self._cancelled.setdefault(execution_id, now) > GRACE:
                    log.warning("segment abandoned", extra={"execution_id": execution_id})
                    self._leave(segment)
            elif segment.work_seconds > self._time_limit:
                segment.fail(f"TimeLimitExceeded: the execution took longer than {self._time_limit:g} seconds")
                segment.job.cancelled.set("the time limit is over")
