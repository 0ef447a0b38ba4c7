"""The CPU time of work beside that of a fixed loop, so that a test asserts the same on a slow machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import cache

STEPS = 2_800_000  # counting so far takes a tenth of a second on a common machine


def tenths(work: Callable[[], object], enough: float = 0.0) -> float:
    """Return the CPU time of work, in tenths of a second on a common machine.

    :param enough: measure again only if the work took longer
    """
    return cpu_of(work, enough * _tenth()) / _tenth()


def cpu_of(work: Callable[[], object], enough: float = 0.0) -> float:
    """Return the CPU time of work in seconds, the least of three times.

    Without garbage collections, which clean up after everything that the process has loaded.

    :param enough: measure again only if the work took longer
    """

    def once() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    gc.disable()
    try:
        least = once()
        for _ in range(2):
            if least >= enough:
                least = min(least, once())
        return least
    finally:
        gc.enable()


@cache
def _tenth() -> float:
    return cpu_of(_count)


def _count() -> None:
    total = 0
    for number in range(STEPS):
        total += number
