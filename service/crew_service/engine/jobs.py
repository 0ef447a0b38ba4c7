"""A process that runs a bounded amount of work and then ends, as a job of Kubernetes, Batch or Airflow does.

A segment is what runs without interruption: an execution that asks a person is several. Which segments a process takes
is decided by the database alone, so a job that is started twice finds nothing the second time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Protocol

from crew_service.settings import Settings
from crew_service.storage.engines import CONNECTIONS


class Runner(Protocol):
    """The part of a runner that a job asks."""

    @property
    def is_busy(self) -> bool: ...

    @property
    def idle_since(self) -> float | None: ...


class Quota:
    """The number of segments that the crews of a process may still take together.

    :param most: the number; None if there is no limit
    """

    def __init__(self, most: int | None = None) -> None:
        self._left = most
        self._lock = threading.Lock()

    @property
    def is_used_up(self) -> bool:
        return self._left == 0

    def reserve(self, wanted: int) -> int:
        """Reserve up to ``wanted`` segments; return how many."""
        with self._lock:
            if self._left is None:
                return wanted
            reserved = min(wanted, self._left)
            self._left -= reserved
            return reserved

    def give_back(self, number: int) -> None:
        """Give back what was reserved and not taken."""
        with self._lock:
            if self._left is not None:
                self._left += number


def is_done(quota: Quota, idle_exit: float | None, runners: Collection[Runner]) -> bool:
    """Return whether a process has taken all that it may, or has found nothing for ``idle_exit`` seconds.

    A claim reserves before it takes and is busy meanwhile, so the quota must be read first.
    """
    is_used_up = quota.is_used_up
    if any(runner.is_busy for runner in runners):
        return False
    found_nothing = [runner.idle_since for runner in runners if runner.idle_since is not None]
    if is_used_up or idle_exit is None or len(found_nothing) < len(runners):
        return is_used_up
    return time.monotonic() - max(found_nothing) >= idle_exit


def connections(settings: Settings) -> int:
    """Return how many connections a process keeps open for reads, and as many for writes.

    Of the processes that only run crews there may be many: one for each segment, and one for the process itself.
    """
    if settings.delivers:
        return CONNECTIONS
    limits = (settings.workers, settings.max_executions)
    return min(CONNECTIONS, 1 + min((limit for limit in limits if limit), default=CONNECTIONS))
