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

Written = TypeVar("Written")


class WriteRefused(Exception):
    """The database refuses this write alone, so that waiting does not help."""


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
            cancelled.wait(min(LONGEST_PAUSE, FIRST_PAUSE * 1.5**tries) * random.uniform(0.8, 1.2))  # noqa: S311
