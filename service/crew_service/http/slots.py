"""Limits expensive work: pages, lists, searches, records, and checks of edited answers. Nothing else waits for it.

Each owner has a few slots; further requests wait briefly and are then told to retry. Polls of many executions and
large statuses wait for their turn, because tasks depend on them. The work has its own threads, fewer than there are
database connections, and no owner ever gets all of them. Identical work for concurrent requests is done only once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import HTTPException

from crew_service.http.unsent import OWNER, Unsent

SLOTS = 8  # per owner, running or waiting for a thread
THREADS = 4  # per process: they read the database, which allows ten connections per process
THREADS_OF_ONE = 2
PATIENCE = 2.0  # seconds that a further request waits for a slot
KEPT = 16 * 1024 * 1024  # bytes of cached pages
PAGE = 1024  # bytes of overhead per page
EDITS = 8  # edited answers per owner, running or waiting
BATCHES = 2  # concurrent polls of many executions per process, and one per owner, so that others find a free thread
STATUSES = 2  # concurrent large statuses per process, and one per owner: each takes twice its size in memory
CHECKS = 2  # per process, and one per owner: each starts a process that runs the crew's code for up to a minute
DOWNLOADS = 4  # kickoffs per owner that fetch files; others wait, without a thread
PROBES = 2
RETRY_AFTER = {"Retry-After": "2"}

Made = TypeVar("Made")


class Threads:
    """Separate threads for one kind of work, so that it neither waits for other work nor delays it."""

    def __init__(self, most: int, unsent: Unsent | None = None) -> None:
        self._free = asyncio.Semaphore(most)
        self._unsent = unsent

    async def run(self, work: Callable[..., Made], *args: Any) -> Made:
        while True:
            if self._unsent:
                await self._unsent.room()  # before it takes a thread from those who have room
            async with self._free:
                if self._unsent and not self._unsent.has_room():
                    continue
                return await anyio.to_thread.run_sync(lambda: work(*args), limiter=CapacityLimiter(1))


class _Owner:
    def __init__(self, slots: int, threads: int) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.threads = CapacityLimiter(threads)


class Shares:
    """A limited number of slots per owner; used only in the event loop."""

    def __init__(
        self,
        what: str,
        *,
        slots: int,
        threads: int,
        of_one: int,
        is_patient: bool = False,
        unsent: Unsent | None = None,
    ) -> None:
        """Create the slots.

        :param is_patient: whether further requests wait indefinitely
        :param unsent: required if the work creates a response that may be large
        """
        self._is_patient = is_patient
        self._busy = f"You already have {slots} {what} in progress; try again later."
        self._owners = defaultdict[str, _Owner](lambda: _Owner(slots, of_one))
        self._here: Counter[str] = Counter()
        self._threads = Threads(threads, unsent)

    async def run(self, owner: str, work: Callable[..., Made], *args: Any) -> Made:
        """Run work in a thread; no slot is held while a body is received or sent."""
        OWNER.set(owner)  # each request has its own context
        async with self.slot(owner) as own, own.threads:
            return await self._threads.run(work, *args)

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[_Owner]:
        """Hold one of the owner's slots within this block."""
        own = self._owners[owner]
        self._here[owner] += 1
        try:
            await self._enter(own)
            try:
                yield own
            finally:
                own.slots.release()
        finally:
            self._here[owner] -= 1
            if not self._here[owner]:
                del self._owners[owner], self._here[owner]

    async def _enter(self, owner: _Owner) -> None:
        try:
            await asyncio.wait_for(owner.slots.acquire(), None if self._is_patient else PATIENCE)
        except asyncio.TimeoutError:
            raise HTTPException(429, self._busy, RETRY_AFTER) from None


class MadeOnce:
    """Keeps the most recently requested pages; concurrent requests for the same page wait for the first."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._pages: OrderedDict[Hashable, Future[bytes | None]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable, make: Callable[[], bytes | None]) -> bytes | None:
        """Return the result of `make`, or its earlier result for the same key.

        :param key: the displayed state and everything that differs between viewers
        """
        with self._lock:
            page, is_mine = self._pages.get(key), key not in self._pages
            if page is None:
                page = self._pages[key] = Future()
            self._pages.move_to_end(key)
        return self._make(key, page, make) if is_mine else page.result()

    def _make(self, key: Hashable, page: Future[bytes | None], make: Callable[[], bytes | None]) -> bytes | None:
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                del self._pages[key]
            page.set_exception(error)
            raise
        page.set_result(made)
        with self._lock:
            self._size += _size(made)
            while self._size > self._most and (oldest := self._oldest()) is not None:
                self._size -= _size(self._pages.pop(oldest).result())
        return made

    def _oldest(self) -> Hashable | None:
        return next((key for key, page in self._pages.items() if page.done()), None)


class Slots(Shares):
    """The slots of one process."""

    def __init__(self) -> None:
        self.unsent = unsent = Unsent()
        super().__init__("pages or lists", slots=SLOTS, threads=THREADS, of_one=THREADS_OF_ONE, unsent=unsent)
        self.batches = Shares("batches", slots=1, threads=BATCHES, of_one=1, is_patient=True, unsent=unsent)
        self.statuses = Shares("large statuses", slots=1, threads=STATUSES, of_one=1, is_patient=True, unsent=unsent)
        self.edits = Shares("edited answers", slots=EDITS, threads=CHECKS, of_one=1)
        self.downloads = Shares("kickoffs that fetch files", slots=DOWNLOADS, threads=1, of_one=1, is_patient=True)
        self.pages = MadeOnce()


def _size(made: bytes | None) -> int:
    return PAGE + len(made or b"")
