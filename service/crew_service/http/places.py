"""Places for what costs: pages, lists, searches and records. Kickoffs, answers, stops and polls never wait for these.

An owner has a few; who wants more waits for a moment, and is then told to come back. The work has threads of its own,
fewer than the database has connections, and an owner never all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import HTTPException

PLACES = 8  # of an owner, at work or waiting for a thread
THREADS = 4  # of the process: these read the database, which allows a process ten connections
THREADS_OF_ONE = 2
PATIENCE = 2.0  # seconds that a further request waits for a place
RETRY_AFTER = {"Retry-After": "2"}

Made = TypeVar("Made")


class _Owner:
    def __init__(self) -> None:
        self.places = asyncio.Semaphore(PLACES)
        self.threads = CapacityLimiter(THREADS_OF_ONE)


class Places:
    """Of one process; used in its event loop only."""

    def __init__(self) -> None:
        self._owners: defaultdict[str, _Owner] = defaultdict(_Owner)
        self._here: Counter[str] = Counter()
        self._threads: CapacityLimiter | None = None

    async def run(self, owner: str, work: Callable[..., Made], *args: Any) -> Made:
        """Work in a thread; receiving and sending bodies is no part of it."""
        places = self._owners[owner]
        self._here[owner] += 1
        try:
            await self._enter(places)
            try:
                return await self._work(places, work, *args)
            finally:
                places.places.release()
        finally:
            self._here[owner] -= 1
            if not self._here[owner]:
                del self._owners[owner], self._here[owner]

    async def _enter(self, owner: _Owner) -> None:
        try:
            await asyncio.wait_for(owner.places.acquire(), PATIENCE)
        except asyncio.TimeoutError:
            raise HTTPException(
                429, f"You have {PLACES} pages or lists at work; try again later.", RETRY_AFTER
            ) from None

    async def _work(self, owner: _Owner, work: Callable[..., Made], *args: Any) -> Made:
        self._threads = self._threads or CapacityLimiter(THREADS)
        async with owner.threads:
            return await anyio.to_thread.run_sync(lambda: work(*args), limiter=self._threads)
