"""Waiting for a condition, with an end; `TEST_PATIENCE` is a factor for every end, for a machine that is busy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

FACTOR = float(os.environ.get("TEST_PATIENCE", "1"))
# Seconds that only end a test that hangs: what happens at all happens earlier.
PATIENCE = 240 * FACTOR
LONGEST = 0.1  # seconds to which a shorter pause grows: what did not come at once need not be seen at once


class StackTimeout(AssertionError):
    """What was waited for did not come."""


def wait_until(
    condition: Callable[[], Found | None], what: str, pause: float = 0.2, patience: float = PATIENCE
) -> Found:
    """Check a condition until it is met, and return its value."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise StackTimeout(f"waited {patience:.0f} s in vain for {what}")
        time.sleep(pause)
        pause = max(pause, min(1.2 * pause, LONGEST))
    return found
