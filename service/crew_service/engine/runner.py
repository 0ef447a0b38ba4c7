"""Runs queued executions in a bounded pool, one thread per segment, and enforces the limits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy.engine import Row

from crew_service.engine import machine
from crew_service.engine.background import Background
from crew_service.engine.budgets import Budgets, hold
from crew_service.engine.crew import Cancelled, Crew
from crew_service.engine.jobs import Quota
from crew_service.engine.ledger import Ledger
from crew_service.engine.membership import Membership
from crew_service.engine.segments import Segment
from crew_service.storage import claims, integrity, queries
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database
from crew_service.storage.states import State

log = logging.getLogger(__name__)

TICK = 0.25  # seconds between polls for work that another process queued
SYNC = 1.0  # seconds within which a stop by another process is noticed
RECOVERY = 30.0  # seconds between polls for orphaned executions; an error triggers one at once
UNSTORED = "The database refused what the crew returned, so the execution was ended."
GRACE = 5.0  # seconds for a cancelled segment to return before its place is reused


def _concerns_all(error: Exception) -> bool:
    """Return whether an error is due to the database or the machine, so that the next execution would fail too."""
    return isinstance(error, DatabaseUnavailable) or machine.is_trouble(error)


def stop_all(runners: Collection[Runner]) -> None:
    """Stop; executions that do not end in time are returned to the queue when this process leaves."""
    for each in runners:
        each.stop()
    deadline = time.monotonic() + GRACE
    while any(each.running() for each in runners) and time.monotonic() < deadline:
        time.sleep(0.02)


class Runner:
    """Runs one crew's executions.

    :param segment: makes a segment of an execution's row and its finished tasks
    """

    def __init__(
        self,
        database: Database,
        membership: Membership,
        name: str,
        crew: Crew,
        *,
        workers: int,
        segment: Callable[[Row[Any], list[Any]], Segment],
        quota: Quota,
        budgets: Budgets,
        ledger: Ledger,
    ) -> None:
        self._database = database
        self._membership = membership
        self._name = name
        self._crew = crew
        self._workers = workers
        self._segment = segment
        self._quota = quota
        self._budgets = budgets
        self._ledger = ledger
        self._is_claiming = False
        self._idle_since: float | None = None
        self._running: dict[str, Segment] = {}
        self._cancelled: dict[str, float] = {}
        self._lock = threading.Lock()
        self._recovered_at = time.monotonic()
        self._synced_at = 0.0
        self._rests_until = float("-inf")  # after the machine ran out of files, threads or memory
        self.loop = Background("dispatcher", self._dispatch, pause=TICK)
        self.wake = self.loop.wake

    def start(self) -> None:
        self.loop.start()

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

    @property
    def is_busy(self) -> bool:
        return bool(self._is_claiming or self._running)

    @property
    def idle_since(self) -> float | None:
        """When the queue was first seen to be empty, by `time.monotonic`; None if it was not, or could not be read."""
        return None if self.is_busy else self._idle_since

    def stop(self) -> None:
        """Claim no more executions, and return those that are running to the queue as soon as they end."""
        self.loop.stop()
        self.cancel_all("the service is stopping")

    def _dispatch(self) -> None:
        try:
            self._step()
        except Exception as error:  # a claimed execution may have no thread yet
            self._recovered_at, self._idle_since = float("-inf"), None
            if not machine.is_trouble(error):
                raise
            self._rest(error)

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
            if self._budgets.stops:
                self._stop_over_budget()

    def _claim_free(self) -> None:
        free = self._workers - len(self._running)
        if free <= 0 or time.monotonic() < self._rests_until:
            return
        with self._database.reading() as connection:
            is_queued = claims.has_queued(connection, self._name, now=self._database.now())
        if is_queued and (free := self._quota.reserve(free)):
            is_queued = self._claim(free)
        if is_queued:
            self._idle_since = None
        elif self._idle_since is None or self._running:
            self._idle_since = time.monotonic()

    def _claim(self, free: int) -> bool:
        """Claim and begin up to ``free`` executions; return whether there were any."""
        self._is_claiming, claimed = True, None
        try:
            now = self._database.now()
            with self._database.writing() as connection:
                barred = self._budgets.barred(connection, self._name, now=now)
                claimed = claims.claim_due(
                    connection, self._membership.id, self._name, now=now, limit=free, holds=barred.holds
                )
                self._ledger.book_claimed(connection, claimed or [])
                if self._budgets:
                    hold(connection, self._name, barred)
            if claimed is None:
                self._membership.rejoin()
            for execution_id in claimed or ():
                self._try_to_begin(execution_id)
        finally:
            self._quota.give_back(free - len(claimed or ()))
            self._is_claiming = False
        return claimed != []

    def _try_to_begin(self, execution_id: str) -> None:
        """Start an execution. If it cannot start, it is recovered after a pause and does not block the others."""
        try:
            self._begin(execution_id)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            with self._lock:
                self._running.pop(execution_id, None)
            if machine.is_trouble(error):
                self._rest(error)
            else:
                log.exception("the execution cannot be started; trying again", extra={"execution_id": execution_id})

    def _begin(self, execution_id: str) -> None:
        segment = self._load(execution_id)
        if segment is None:
            return
        with self._lock:
            self._running[execution_id] = segment
        threading.Thread(target=self._run, args=(segment,), name=f"crew-{execution_id[:8]}", daemon=True).start()

    def _load(self, execution_id: str) -> Segment | None:
        """Read a claimed execution; end it if it cannot be read."""
        with self._database.reading() as connection:
            row = queries.by_id(connection, execution_id)
            done = queries.tasks_of(connection, execution_id)
        if row is None or row.state != State.RUNNING or row.claimed_by != self._membership.id:
            return None  # deleted, stopped or taken over since it was claimed
        try:
            if integrity.can_go_on(row, done):
                return self._segment(row, done)
        except integrity.MALFORMED as error:
            log.error("a stored value is invalid: %r", error, extra={"execution_id": execution_id})
        with self._database.writing() as connection:
            mine = self._membership.id  # it may have been taken over while its tasks were read
            is_over = integrity.end_unreadable(connection, execution_id, now=self._database.now(), claimed_by=mine)
        if is_over:
            log.error("the stored execution cannot be read, so it was ended", extra={"execution_id": execution_id})
        return None

    def _run(self, segment: Segment) -> None:
        try:
            log.info("running", extra={"execution_id": segment.execution_id})
            segment.run(self._crew)
        except Cancelled:
            if self.loop.is_stopping:
                self._give_back(segment)
        except Exception as error:
            if machine.is_trouble(error):
                self._leave(segment)  # like everything claimed but not running here, it returns to the queue
                self._rest(error)
            else:
                log.exception("segment lost", extra={"execution_id": segment.execution_id})
                self._end_lost(segment)
        finally:
            self._leave(segment)

    def _rest(self, error: Exception) -> None:
        """Start nothing for a moment, so that running executions can release resources."""
        now = time.monotonic()
        if now >= self._rests_until:
            log.warning("executions on hold: the machine is out of files, threads or memory (%s)", type(error).__name__)
        self._rests_until, self._recovered_at = now + machine.PAUSE, float("-inf")

    def _end_lost(self, segment: Segment) -> None:
        """Fail a segment whose result can never be stored; it would otherwise be rerun forever."""
        try:
            segment.fail(UNSTORED)
        except Exception:
            log.exception("the execution could not be ended", extra={"execution_id": segment.execution_id})

    def _give_back(self, segment: Segment) -> None:
        try:
            segment.requeue()
        except Exception as error:  # another process, the next start or `_recover` will requeue it
            log.warning(
                "not returned to the queue: %s", type(error).__name__, extra={"execution_id": segment.execution_id}
            )

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
                self._enforce_limits_of(segment)

    def _enforce_limits_of(self, segment: Segment) -> None:
        """Enforce an execution's limits. If that fails, the execution is recovered after a pause; others continue."""
        try:
            segment.enforce_limits()
        except Exception as error:
            if _concerns_all(error):
                raise
            log.exception("limits cannot be enforced", extra={"execution_id": segment.execution_id})
            segment.job.cancelled.set("its limits cannot be enforced")

    def _drop_lost(self) -> None:
        """Cancel executions that another process stopped or, after removing this one, took over."""
        with self._lock:
            running = set(self._running)
        if not running:
            return
        with self._database.reading() as connection:
            mine = claims.claimed_by(connection, self._membership.id, self._name)
        for execution_id in running - mine:
            self.cancel(execution_id, "the execution is no longer running here")

    def _stop_over_budget(self) -> None:
        running = list(self._running.values())
        if not running:
            return
        with self._database.writing() as connection:
            barred = self._budgets.barred(connection, self._name, now=self._database.now())
        for segment in running:
            if (standing := barred.of(segment.owner)) and not segment.job.cancelled.is_set():
                segment.enforce_limits(standing.sentence(with_figures=standing.budget.owner is not None))

    def _recover(self) -> None:
        """Recover executions whose claim or end got no response; call this only while no claim is in progress."""
        self._membership.probe()  # a restored database does not list this process
        with self._database.writing() as connection:
            running = list(self._running)
            lost = claims.requeue_lost(connection, self._membership.id, self._name, running, now=self._database.now())
        if lost:
            log.warning("executions recovered, count=%d", lost)
