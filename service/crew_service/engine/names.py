"""Looks up receivers' host names in a few dedicated threads, so that a slow lookup delays only its owner.

A lookup cannot be cancelled. A send that times out stops waiting for it, but the lookup occupies its place until
its thread ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import OrderedDict, defaultdict
from concurrent.futures import Future

from aiohttp.abc import AbstractResolver, ResolveResult

THREADS = 16
THREADS_OF_ONE = 2  # per owner
FRESH = 10.0  # seconds for which an answer is reused
KEPT = 256  # answers
PER_FAMILY = 2  # addresses tried per name and address family; each attempt may use a file descriptor
NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
NUMERIC_ADDRESS = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV

Addresses = list[ResolveResult]


class Names:
    """Lookups for one event loop."""

    def __init__(self) -> None:
        self._threads = asyncio.Semaphore(THREADS)
        self._own: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(THREADS_OF_ONE))
        self._under_way: dict[tuple[str, str], Future[Addresses]] = {}
        self._known: OrderedDict[str, tuple[float, Addresses]] = OrderedDict()

    async def look_up(self, owner: str, host: str) -> Addresses:
        """Return the addresses for a host name.

        :raises OSError: if it has none
        """
        since, addresses = self._known.get(host, (float("-inf"), []))
        if time.monotonic() - since < FRESH:
            return addresses
        if (owner, host) not in self._under_way:
            await self._begin(owner, host)
        return await asyncio.wrap_future(self._under_way[owner, host])

    async def _begin(self, owner: str, host: str) -> None:
        """Start a thread once a place is free, unless another send has started this lookup in the meantime."""
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as places:
            for place in (self._own[owner], self._threads):
                await places.enter_async_context(place)
            if (owner, host) in self._under_way:
                return
            looking = self._under_way[owner, host] = _in_thread(host)
            places.pop_all()

        def ended(_: Future[Addresses]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed because the service has stopped
                loop.call_soon_threadsafe(self._end, owner, host)

        looking.add_done_callback(ended)

    def _end(self, owner: str, host: str) -> None:
        looked_up = self._under_way.pop((owner, host))
        self._own[owner].release()
        self._threads.release()
        if looked_up.exception() is None:
            self._known[host] = (time.monotonic(), looked_up.result())
            self._known.move_to_end(host)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)


def _in_thread(host: str) -> Future[Addresses]:
    """Look up a name in a thread that does not prevent the process from exiting."""
    looking: Future[Addresses] = Future()
    looking.set_running_or_notify_cancel()  # from now on, a waiter that gives up does not cancel it for others

    def work() -> None:
        try:
            looking.set_result(_addresses(host))
        except BaseException as error:
            looking.set_exception(error)

    threading.Thread(target=work, name="name-look-up", daemon=True).start()
    return looking


def _addresses(host: str) -> Addresses:
    by_family: defaultdict[int, Addresses] = defaultdict(list)
    for family, _, protocol, _, address in socket.getaddrinfo(
        host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    ):
        numeric = socket.getnameinfo(address, NUMERIC)[0]  # with the zone of a link-local address
        by_family[family].append(
            ResolveResult(hostname=host, host=numeric, port=0, family=family, proto=protocol, flags=NUMERIC_ADDRESS)
        )
    return [address for family in by_family.values() for address in family[:PER_FAMILY]]


class OwnNames(AbstractResolver):
    """Looks up names for one owner."""

    def __init__(self, names: Names, owner: str) -> None:
        self._names, self._owner = names, owner

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> Addresses:
        return [ResolveResult(**{**address, "port": port}) for address in await self._names.look_up(self._owner, host)]

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
