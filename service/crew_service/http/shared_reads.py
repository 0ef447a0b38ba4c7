"""Reads for concurrent requests together: on a database server, most of a small read is the round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from fastapi.concurrency import run_in_threadpool

MOST_KEYS = 25  # per read, which holds as many statuses in memory
READS = 2  # at once: if one is slow, the other continues

Value = TypeVar("Value")


class SharedReads(Generic[Value]):
    """Reads a value by its key; requests that arrive while all reads are busy share the next one.

    Use it only in the event loop. A read never begins before the request for it has arrived.
    """

    def __init__(self, read: Callable[[list[str]], Mapping[str, Value]]) -> None:
        self._read = read
        self._free = asyncio.Semaphore(READS)
        self._keys: dict[str, None] = {}  # of the next read, in order of arrival
        self._next: asyncio.Task[Mapping[str, Value]] | None = None

    async def get(self, key: str) -> Value | None:
        if self._next is None or len(self._keys) == MOST_KEYS:
            self._keys = {}
            self._next = asyncio.create_task(self._read_together(self._keys))
            self._next.add_done_callback(_mark_retrieved)  # if it fails, every request may be gone
        self._keys[key] = None
        found = await asyncio.shield(self._next)  # other requests share it
        return found.get(key)

    async def _read_together(self, keys: dict[str, None]) -> Mapping[str, Value]:
        async with self._free:
            if keys is self._keys:
                self._next = None  # a request that arrives from now on needs a later read
            return await run_in_threadpool(self._read, list(keys))


def _mark_retrieved(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging the task's exception."""
    if not task.cancelled():
        task.exception()
