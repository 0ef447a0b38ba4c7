"""Gives queued executions a place in a bounded pool, one thread for each segment, and enforces the limits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from crew_service.engine import usage
from crew_service.engine.background import Background
from crew_service.engine.crew import Cancelled, Crew
from crew_service.engine.limits import Limits
from crew_service.engine.membership import Membership
from crew_service.engine.printed_writer import PrintedWriter
from crew_service.engine.segments import Segment
from crew_service.storage import claims, integrity, queries
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database

log = logging.getLogger(__name__)

TICK = 0.25  # seconds between polls for work that another process queued
SYNC = 1.0  # seconds within which a stop by another process is noticed
RECOVERY = 30.0  # seconds between polls for executions that nobody runs; after trouble with the database at once
UNSTORED = "The database refused what the crew returned, so the execution was ended."
GRACE = 5.0  # seconds that a cancelled segment has to return before its place is given away


class Runner:
    """Runs the executions of one crew."""

    def __init__(
        self,
        database: Database,
        membership: Membership,
        name: str,
        crew: Crew,
        *,
        workers: int,
        limits: Limits,
        fresh_ids: bool,
        posted: Callable[[], None],
        spent: Callable[[usage.ByModel], None],
        printed: PrintedWriter,
    ) -> None:
        self._database = database
        self._membership = membership
        self._name = name
        self._crew = crew
        self._workers = workers
        self._limits = limits
        self._fresh_ids = fresh_ids
        self._posted = posted
        self._spent = spent
        self._printed = printed
        self._running: dict[str, Segment] = {}
        self._cancelled: dict[str, float] = {}
        self._lock = threading.Lock()
        self._recovered_at = time.monotonic()
        self._synced_at = 0.0
        self._loop = Background("dispatcher", self._dispatch, pause=TICK)
        self.wake = self._loop.wake

    def start(self) -> None:
        self._loop.start()

    def cancel(self, execution_id: str, reason: str) -> None:
        with self._lock:
            segment = self._running.get(execution_id)
        if segment:
            segment.job.cancelled.set(reason)

    def cancel_all(self, reason: str) -> None:
        for execution_id in list(self._running):
            self.cancel(execution_id, reason)

    def running(self) -> int:
        return len(self._running)

    def is_alive(self) -> bool:
        return self._loop.is_alive

    def seconds_behind(self) -> float:
        return self._loop.seconds_behind

    def stop(self) -> None:
        """Give running executions back to the queue; what does not return in time is given back by the membership."""
        self._loop.stop()
        deadline = time.monotonic() + GRACE
        self.cancel_all("the service stops")
        while self._running and time.monotonic() < deadline:
            time.sleep(0.02)

    def _dispatch(self) -> None:
        try:
            self._step()
        except DatabaseUnavailable:  # it may hold a claim that no thread was started for
            self._recovered_at = float("-inf")
            raise

    def _step(self) -> None:
        if self._database.availability.problem:
            self._membership.probe()
        self._enforce_limits()
        now = time.monotonic()
        if now - self._recovered_at > RECOVERY:
            self._recovered_at = now
            self._recover()
        self._claim_free()
        if now - self._synced_at > SYNC:
            self._synced_at = now
            self._drop_lost()

    def _claim_free(self) -> None:
        free = self._workers - len(self._running)
        if free <= 0:
            return
        with self._database.reading() as connection:
            if not claims.has_queued(connection, self._name):
                return
        with self._database.writing() as connection:
            claimed = claims.claim_due(
                connection, self._membership.id, self._name, now=self._database.now(), limit=free
            )
        if claimed is None:
            self._membership.rejoin()
        for execution_id in claimed or ():
            self._begin(execution_id)

    def _begin(self, execution_id: str) -> None:
        segment = self._load(execution_id)
        if segment is None:
            return
        with self._lock:
            self._running[execution_id] = segment
        threading.Thread(target=self._run, args=(segment,), name=f"crew-{execution_id[:8]}", daemon=True).start()

    def _load(self, execution_id: str) -> Segment | None:
        """Read a claimed execution; one that cannot be read ends here."""
        with self._database.reading() as connection:
            row = queries.by_id(connection, execution_id)
            done = queries.tasks_of(connection, execution_id)
        if row is None:
            return None
        if not integrity.can_go_on(row, done):
            with self._database.writing() as connection:
                integrity.end_unreadable(connection, execution_id, now=self._database.now())
            log.error("the stored execution cannot be read; it was ended", extra={"execution_id": execution_id})
            return None
        return Segment(
            self._database,
            row,
            done,
            limits=self._limits,
            fresh_ids=self._fresh_ids,
            posted=self._posted,
            spent=self._spent,
            printed=self._printed,
        )

    def _run(self, segment: Segment) -> None:
        log.info("running", extra={"execution_id": segment.execution_id})
        try:
            segment.run(self._crew)
        except Cancelled:
            if self._loop.is_stopping:
                self._give_back(segment)
        except Exception:
            log.exception("segment lost", extra={"execution_id": segment.execution_id})
            self._end_lost(segment)
        finally:
            self._leave(segment)

    def _end_lost(self, segment: Segment) -> None:
        """What could not be stored once cannot be stored again: without an end it would run for ever."""
        try:
            segment.fail(UNSTORED)
        except Exception:
            log.exception("not ended", extra={"execution_id": segment.execution_id})

    def _give_back(self, segment: Segment) -> None:
        try:
            segment.requeue()
        except DatabaseUnavailable:  # others, or the next start, find that it lost its process
            log.warning("not given back", extra={"execution_id": segment.execution_id})

    def _leave(self, segment: Segment) -> None:
        with self._lock:
            if self._running.get(segment.execution_id) is segment:
                del self._running[segment.execution_id]
                self._cancelled.pop(segment.execution_id, None)
        self.wake()

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for execution_id, segment in list(self._running.items()):
            if segment.job.cancelled.is_set():
                if now - self._cancelled.setdefault(execution_id, now) > GRACE:
                    log.warning("segment abandoned", extra={"execution_id": execution_id})
                    self._leave(segment)
            else:
                segment.enforce_limits()

    def _drop_lost(self) -> None:
        """Cancel what another process stopped, or runs since it removed this one."""
        with self._lock:
            running = set(self._running)
        if not running:
            return
        with self._database.reading() as connection:
            mine = claims.claimed_by(connection, self._membership.id, self._name)
        for execution_id in running - mine:
            self.cancel(execution_id, "the execution is not run here any more")

    def _recover(self) -> None:
        """After a claim or an end whose write had no answer; only where no claim is under way."""
        with self._database.writing() as connection:
            running = list(self._running)
            lost = claims.requeue_lost(connection, self._membership.id, self._name, running, now=self._database.now())
        if lost:
            log.warning("executions recovered, count=%d", lost)
