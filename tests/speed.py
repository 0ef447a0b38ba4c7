"""The CPU time of work beside that of a fixed loop, so that a test asserts the same on a slow machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

STEPS = 2_800_000  # counting so far takes a tenth of a second on a common machine


def tenths(work: Callable[[], object]) -> float:
    """Return the CPU time of work, in tenths of a second on a common machine."""
    return cpu_of(work) / cpu_of(_count)


def cpu_of(work: Callable[[], object]) -> float:
    """Return the CPU time of work in seconds, the least of three times.

    Without garbage collections, which clean up after everything that the process has loaded.
    """

    def once() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    gc.disable()
    try:
        return min(once() for _ in range(3))
    finally:
        gc.enable()


def _count() -> None:
    total = 0
    for number in range(STEPS):
        total += number
