"""Waits for a condition, with a timeout; `TEST_PATIENCE` multiplies all timeouts, for busy machines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

FACTOR = float(os.environ.get("TEST_PATIENCE", "1"))
# Seconds; only tests that hang reach this limit.
PATIENCE = 240 * FACTOR
LONGEST = 0.1  # seconds to which a shorter pause grows
# Each check takes CPU time from what it waits for, so a slow one is repeated less often.
REST = 3  # times the duration of a check
LONGEST_REST = 1.0  # seconds


class StackTimeout(AssertionError):
    """A condition was not met in time."""


def wait_until(
    condition: Callable[[], Found | None], what: str, pause: float = 0.2, patience: float = PATIENCE
) -> Found:
    """Check a condition until it is met, and return its value."""
    deadline = time.monotonic() + patience
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        checked = time.monotonic()
        if checked > deadline:
            raise StackTimeout(f"gave up waiting for {what} after {patience:.0f} s")
        time.sleep(max(pause, min(REST * (checked - began), LONGEST_REST)))
        pause = max(pause, min(1.2 * pause, LONGEST))
