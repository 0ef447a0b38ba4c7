"""Lookups shared by many viewers: each value is looked up at most once per pause, by one of a few threads.

A viewer immediately gets what is known, and waits briefly only for a first value. So a deployment that hangs blocks
threads here but none of the API server's, and no owner can use all of these threads. A page is rendered only once for
the same facts.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

FIRST_WAIT = 1.5  # seconds that a page waits for a first lookup

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Value(Protocol):
    """The value of a lookup."""

    @property
    def is_final(self) -> bool:
        """Whether it can no longer change."""


V = TypeVar("V", bound=Value)


@dataclass
class _Entry(Generic[V]):
    asked_at: float
    value: V | None = None
    pending: Future[V] | None = None


def _nobody(key: Any) -> Hashable:
    return None


class Shared(Generic[K, V]):
    """Values by key, looked up for all viewers together.

    :param look_up: returns a value, given its key and the previous one
    :param pause: seconds between two lookups of one key
    :param threads: how many lookups run at the same time
    :param most: how many values are kept; the least recently used are dropped, but never fresh ones
    :param owner: returns the owner of a key
    :param each: how many of the threads one owner may use; None for all
    """

    def __init__(
        self,
        look_up: Callable[[K, V | None], V],
        *,
        pause: float,
        threads: int,
        most: int,
        owner: Callable[[K], Hashable] = _nobody,
        each: int | None = None,
    ) -> None:
        self._look_up, self._pause, self._most = look_up, pause, most
        self._threads, self._owner, self._each = threads, owner, each or threads
        self._pool: ThreadPoolExecutor | None = None
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._waiting: OrderedDict[Hashable, deque[tuple[K, _Entry[V]]]] = OrderedDict()
        self._at_work: Counter[Hashable] = Counter()
        self._lock = Lock()

    def peek(self, key: K) -> V | None:
        """Return what is known, without looking anything up."""
        entry = self._entries.get(key)
        return entry.value if entry else None

    def ask(self, key: K, now: float) -> tuple[V | None, Future[V] | None]:
        """Return what is known and the current lookup; start one if it is due."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(asked_at=float("-inf"))
            self._entries.move_to_end(key)
            if self._is_due(entry, now):
                entry.asked_at, entry.pending = now, Future()
                self._waiting.setdefault(self._owner(key), deque()).append((key, entry))
                self._begin()
            self._forget(now)
            return entry.value, entry.pending

    async def latest(self, key: K, now: float) -> V | None:
        """Return what is known; wait briefly if nothing is."""
        value, pending = self.ask(key, now)
        if value is not None or pending is None:
            return value
        await asyncio.wait([asyncio.wrap_future(pending)], timeout=FIRST_WAIT)
        return pending.result() if pending.done() else None

    def _is_due(self, entry: _Entry[V], now: float) -> bool:
        is_final = entry.value is not None and entry.value.is_final
        return entry.pending is None and not is_final and now - entry.asked_at >= self._pause

    def _begin(self) -> None:
        """Start as many lookups as there are free threads, taking turns between owners."""
        while self._at_work.total() < self._threads:
            owner = next((each for each in self._waiting if self._at_work[each] < self._each), None)
            if owner not in self._waiting:
                return
            queue = self._waiting.pop(owner)
            key, entry = queue.popleft()
            if queue:
                self._waiting[owner] = queue
            self._at_work[owner] += 1
            self._executor().submit(self._work, owner, key, entry)

    def _work(self, owner: Hashable, key: K, entry: _Entry[V]) -> None:
        pending = entry.pending
        assert pending is not None
        try:
            value, problem = self._look_up(key, entry.value), None
        except Exception as error:
            value, problem = entry.value, error  # type: ignore[assignment]
        with self._lock:
            entry.value, entry.pending = value, None
            self._at_work -= Counter({owner: 1})
            self._begin()
        if problem is None:
            pending.set_result(value)
        else:
            pending.set_exception(problem)

    def _forget(self, now: float) -> None:
        for key in list(self._entries)[: max(0, len(self._entries) - self._most)]:
            if self._entries[key].pending is None and now - self._entries[key].asked_at >= self._pause:
                del self._entries[key]

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="crew-view")
        return self._pool


class Made(Generic[K, T]):
    """Results created once from the same facts, however many viewers ask for them; only the latest is kept per key.

    :param threads: how many are created at the same time
    :param most: how many are kept
    """

    def __init__(self, *, threads: int, most: int) -> None:
        self._threads, self._most = threads, most
        self._pool: ThreadPoolExecutor | None = None
        self._kept: OrderedDict[K, tuple[Any, Future[T]]] = OrderedDict()

    async def of(self, key: K, facts: Any, make: Callable[[], T]) -> T:
        """Return the result for these facts; must be called from one event loop."""
        known, made = self._kept.get(key, (None, None))
        if made is None or known != facts or (made.done() and made.exception()):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="crew-page")
            made = self._pool.submit(make)
            self._kept[key] = facts, made
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return await asyncio.shield(asyncio.wrap_future(made))
