"""What many viewers share: each value is looked up at most once in a while, by one of a few threads.

A viewer gets what is known, at once; only the first one waits a little for the first value. So a deployment that hangs
holds up the threads here and none of the API server's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import RLock
from typing import Generic, Protocol, TypeVar

FIRST_WAIT = 1.5  # seconds that a page waits for what nobody has looked up yet

K = TypeVar("K")


class Value(Protocol):
    """What is looked up."""

    @property
    def is_final(self) -> bool:
        """Whether it cannot change any more."""


V = TypeVar("V", bound=Value)


@dataclass
class _Entry(Generic[V]):
    asked_at: float
    value: V | None = None
    pending: Future[V] | None = None


class Shared(Generic[K, V]):
    """Values by their keys.

    :param look_up: returns a value, given its key and the one before
    :param pause: seconds between two look-ups of one key
    :param threads: how many look-ups run at the same time
    :param most: how many values are kept; those that nobody has asked for longest go, never one that is fresh
    """

    def __init__(self, look_up: Callable[[K, V | None], V], *, pause: float, threads: int, most: int) -> None:
        self._look_up, self._pause, self._most = look_up, pause, most
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._lock = RLock()  # a look-up that is done at once ends in the thread that began it

    def peek(self, key: K) -> V | None:
        """Return what is known, and look nothing up."""
        entry = self._entries.get(key)
        return entry.value if entry else None

    def ask(self, key: K, now: float) -> tuple[V | None, Future[V] | None]:
        """Return what is known, and the look-up that is under way; one begins if it is time for it."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(asked_at=float("-inf"))
            self._entries.move_to_end(key)
            if self._is_due(entry, now):
                entry.asked_at = now
                entry.pending = self._executor().submit(self._look_up, key, entry.value)
                entry.pending.add_done_callback(lambda done: self._keep(entry, done))
            self._forget(now)
            return entry.value, entry.pending

    async def latest(self, key: K, now: float) -> V | None:
        """Return what is known; wait a little where nothing is."""
        value, pending = self.ask(key, now)
        if value is not None or pending is None:
            return value
        await asyncio.wait([asyncio.wrap_future(pending)], timeout=FIRST_WAIT)
        return pending.result() if pending.done() else None

    def _is_due(self, entry: _Entry[V], now: float) -> bool:
        is_final = entry.value is not None and entry.value.is_final
        return entry.pending is None and not is_final and now - entry.asked_at >= self._pause

    def _keep(self, entry: _Entry[V], done: Future[V]) -> None:
        with self._lock:
            entry.pending = None
            if done.exception() is None:
                entry.value = done.result()

    def _forget(self, now: float) -> None:
        for key in list(self._entries)[: max(0, len(self._entries) - self._most)]:
            if self._entries[key].pending is None and now - self._entries[key].asked_at >= self._pause:
                del self._entries[key]

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="crew-view")
        return self._pool
