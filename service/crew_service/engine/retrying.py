"""Retries an operation until the database is available, so that outages do not lose progress or fail executions."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from crew_service.engine.crew import Cancellation, Cancelled
from crew_service.storage.availability import DatabaseUnavailable

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds
REFUSED_AFTER = 60.0  # seconds of the same error that a write may cause, while other executions' writes succeed

MOST_GROWTHS = 30  # pauses that are longer than the one before; a float cannot hold 1.5**1751

Written = TypeVar("Written")


class WriteRefused(Exception):
    """The database refuses this write alone, so that waiting does not help."""


def growing(tries: int, *, first: float, factor: float, longest: float) -> float:
    """Return the pause after so many tries, each `factor` times as long as the one before, up to the longest."""
    return min(first * factor ** min(tries, MOST_GROWTHS), longest)


def until_available(
    write: Callable[[], Written],
    cancelled: Cancellation,
    progressed_at: Callable[[], float] = lambda: float("-inf"),
    now: Callable[[], float] = time.monotonic,
) -> tuple[Written, int]:
    """Call `write`, with growing pauses, until it succeeds; return its result and the number of tries.

    :param progressed_at: returns when another execution's write last succeeded, by the clock `now`
    :raises Cancelled: if the cancellation is set before the write succeeds
    :raises WriteRefused: the same error has come back for a minute, while other executions' writes succeeded
    """
    tries, cause, since = 0, "", now()
    while True:
        tries += 1
        try:
            return write(), tries
        except DatabaseUnavailable as error:
            if cancelled.is_set():
                raise Cancelled(cancelled.reason) from None
            if error.cause != cause:
                cause, since = error.cause, now()
            elif cause and now() - since >= REFUSED_AFTER and progressed_at() > since:
                raise WriteRefused(f"The database has refused this write for a minute. {error}") from None
            pause = growing(tries, first=FIRST_PAUSE, factor=1.5, longest=LONGEST_PAUSE)
            cancelled.wait(pause * random.uniform(0.8, 1.2))  # noqa: S311
