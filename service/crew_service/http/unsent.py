"""Limits the memory used by large responses that clients have not read yet.

At the limit, work that would create another one waits, and the client that has been reading longest is disconnected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

UNSENT_BYTES = 64 * 1024 * 1024
READ_SECONDS = 10.0  # how long a client may take to read a response even if others are waiting
SMALL = 32 * 1024  # bytes; smaller responses are not counted, because the number of connections limits them
PAUSE = 0.05  # seconds between checks for room
SHARED = "is_shared"  # set in the state of a request whose response takes no memory of its own


class Unsent:
    """The large responses that have not been read yet; used only in the event loop."""

    def __init__(self) -> None:
        self._responses: dict[Hashable, _Response] = {}  # oldest first
        self._total = 0

    async def room(self) -> None:
        """Wait until another response may be created."""
        while self._total > UNSENT_BYTES:
            oldest, response = next(iter(self._responses.items()))
            if time.monotonic() - response.began > READ_SECONDS:
                self.end(oldest)
                response.abort()
            else:
                await asyncio.sleep(PAUSE)

    def begin(self, key: Hashable, headers: Iterable[tuple[bytes, bytes]], abort: Callable[[], None]) -> None:
        """Count a response; `abort` ends its connection."""
        for name, value in headers:
            if name == b"content-length" and (size := int(value)) > SMALL:
                self._responses[key] = _Response(size, time.monotonic(), abort)
                self._total += size

    def end(self, key: Hashable) -> None:
        if response := self._responses.pop(key, None):
            self._total -= response.size


class _Response(NamedTuple):
    size: int
    began: float
    abort: Callable[[], None]
