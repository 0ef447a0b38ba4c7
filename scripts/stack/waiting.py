"""Waiting for a condition, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


class StackTimeout(AssertionError):
    """What was waited for did not come."""


def wait_until(condition: Callable[[], Found | None], timeout: float, what: str, pause: float = 0.2) -> Found:
    """Check a condition until it is met, and return its value."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise StackTimeout(f"waited {timeout:.0f} s in vain for {what}")
        time.sleep(pause)
    return found
