"""Reads for concurrent requests together: on a database server, most of a small read is the round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice
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
        self._wanted: dict[str, asyncio.Future[Value | None]] = {}
        self._reading: set[asyncio.Task[Any] | None] = set()

    async def get(self, key: str) -> Value | None:
        value = self._wanted.get(key)
        if value is None:
            value = self._wanted[key] = asyncio.get_running_loop().create_future()
        if len(self._reading) < READS:
            task = asyncio.create_task(self._read_wanted())
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)  # even if it is cancelled before it begins
        return await asyncio.shield(value)  # another request may be waiting for the same value

    async def _read_wanted(self) -> None:
        try:
            while self._wanted:
                await self._read_some({key: self._wanted.pop(key) for key in list(islice(self._wanted, MOST_KEYS))})
        finally:  # at once: a request that arrives before the callback runs would wait for this task in vain
            self._reading.discard(asyncio.current_task())

    async def _read_some(self, batch: dict[str, asyncio.Future[Value | None]]) -> None:
        try:
            found = await run_in_threadpool(self._read, list(batch))
        except Exception as error:
            for value in batch.values():
                value.set_exception(error)
                value.exception()  # mark it as retrieved, because every request may be gone
        except BaseException:
            for value in batch.values():
                value.cancel()
            raise
        else:
            for key, value in batch.items():
                value.set_result(found.get(key))
