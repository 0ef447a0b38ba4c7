"""Retries an operation until the database is available, so that outages do not lose progress or fail executions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from crew_service.engine.crew import Cancellation, Cancelled
from crew_service.storage.availability import DatabaseUnavailable

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds

Written = TypeVar("Written")


def until_available(write: Callable[[], Written], cancelled: Cancellation) -> tuple[Written, int]:
    """Call `write`, with growing pauses, until it succeeds; return its result and the number of tries.

    :raises Cancelled: if the cancellation is set before the write succeeds
    """
    tries = 0
    while True:
        tries += 1
        try:
            return write(), tries
        except DatabaseUnavailable:
            if cancelled.is_set():
                raise Cancelled(cancelled.reason) from None
            cancelled.wait(min(LONGEST_PAUSE, FIRST_PAUSE * 1.5**tries) * random.uniform(0.8, 1.2))  # noqa: S311
