"""The CPU time of work beside that of a fixed loop, so that a test asserts the same on a slow machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

STEPS = 2_800_000  # counting so far takes a tenth of a second on a common machine


def tenths(work: Callable[[], object]) -> float:
    """Return the CPU time of work, in tenths of a second on a common machine: the least of three times.

    Without garbage collections, which clean up after everything that the process has loaded.
    """
    gc.disable()
    taken = [(_cpu_of(_count), _cpu_of(work)) for _ in range(3)]
    gc.enable()
    counting, working = map(min, zip(*taken, strict=True))
    return working / counting


def _cpu_of(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _count() -> None:
    total = 0
    for number in range(STEPS):
        total += number
