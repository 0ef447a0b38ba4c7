"""Reads for concurrent requests together: on a database server, most of a small read is the round trip."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from fastapi.concurrency import run_in_threadpool

from crew_service.engine.health import DatabaseUnavailable

log = logging.getLogger(__name__)

MOST_KEYS = 25  # per read, which holds as many statuses in memory
READS = 2  # at once: if one is slow, the other continues
PATIENCE = 15.0  # seconds that a request waits at most, and a read for its turn
SILENT = "The database does not respond."
QUIET = 60.0  # seconds between two log lines

Value = TypeVar("Value")


class SharedReads(Generic[Value]):
    """Reads a value by its key; requests that arrive while all reads are busy share the next one.

    Use it only in the event loop. A read never begins before the request for it has arrived.
    """

    def __init__(self, read: Callable[[list[str]], Mapping[str, Value]]) -> None:
        self._read = read
        self._busy: set[asyncio.Task[Any]] = set()
        self._keys: dict[str, None] = {}  # of the next read, in order of arrival
        self._next: asyncio.Task[Mapping[str, Value]] | None = None
        self._logged_at = float("-inf")

    async def get(self, key: str) -> Value | None:
        """Return a value, or None if the read does not find it.

        :raises DatabaseUnavailable: the read takes too long
        """
        if self._next is None or self._next.done() or len(self._keys) == MOST_KEYS:
            self._keys = {}
            self._next = asyncio.create_task(self._read_together(self._keys))
            self._next.add_done_callback(_mark_retrieved)  # if it fails, every request may be gone
        self._keys[key] = None
        read = self._next
        done, _ = await asyncio.wait({read}, timeout=PATIENCE)  # does not cancel it: other requests share it
        if not done:
            raise self._silent()
        return read.result().get(key)

    async def _read_together(self, keys: dict[str, None]) -> Mapping[str, Value]:
        await self._wait_for_turn()
        this: Any = asyncio.current_task()
        self._busy.add(this)
        try:
            if keys is self._keys:
                self._next = None  # a request that arrives from now on needs a later read
            return await run_in_threadpool(self._read, list(keys))
        finally:
            self._busy.discard(this)

    async def _wait_for_turn(self) -> None:
        """Wait until fewer than `READS` are busy; nothing is acquired, so a timeout can lose nothing."""
        until = time.monotonic() + PATIENCE
        while len(self._busy) == READS:
            left = max(0.0, until - time.monotonic())
            ended, _ = await asyncio.wait(self._busy, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not ended:
                raise self._silent()

    def _silent(self) -> DatabaseUnavailable:
        if time.monotonic() - self._logged_at >= QUIET:
            self._logged_at = time.monotonic()
            log.error("%s Status requests fail until it does.", SILENT)
        return DatabaseUnavailable(SILENT)


def _mark_retrieved(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging the task's exception."""
    if not task.cancelled():
        task.exception()
