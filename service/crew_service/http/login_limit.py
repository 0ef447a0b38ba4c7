"""Slows down the guessing of tokens at the page's login."""

from __future__ import annotations

import time
from collections import deque

TRIES, SECONDS = 10, 60.0  # failures of one address within that time; then it has to wait
ADDRESSES = 10_000  # remembered; the oldest are forgotten first


class LoginLimit:
    """In the memory of one process: a failure must not cost a write to the database, which anybody could cause."""

    def __init__(self) -> None:
        self._failures: dict[str, deque[float]] = {}

    def wait(self, address: str) -> float:
        """Return the seconds until this address may try again; 0 when it may."""
        failures = self._failures.get(address, deque())
        now = time.monotonic()
        while failures and now - failures[0] > SECONDS:
            failures.popleft()
        return SECONDS - (now - failures[0]) if len(failures) >= TRIES else 0.0

    def failed(self, address: str) -> None:
        failures = self._failures.pop(address, deque(maxlen=TRIES))
        failures.append(time.monotonic())
        self._failures[address] = failures
        if len(self._failures) > ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def succeeded(self, address: str) -> None:
        self._failures.pop(address, None)
