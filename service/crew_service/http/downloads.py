"""Fetches a file from a public web address.

Each name is resolved once, and the connection goes to what it was resolved to: a second look-up could lead elsewhere.
Redirects are followed here, so that each of them is checked like the first address.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

PIECE = 64 * 1024  # bytes
REDIRECTS = 5
TRANSLATED = ip_network("64:ff9b::/32")  # leads to any IPv4 address, in networks with NAT64
TIMEOUT = aiohttp.ClientTimeout(total=300.0, sock_connect=10.0, sock_read=30.0)


class NotFetched(Exception):
    """The message is the end of a sentence."""


def is_public(host: str) -> bool:
    """Return whether an IP address is reachable by everybody, so that fetching from it reveals nothing."""
    address = ip_address(host.partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
    return address.is_global and inner.is_global and not address.is_multicast and address not in TRANSLATED


class _Checked(AbstractResolver):
    def __init__(self, is_public: Callable[[str], bool]) -> None:
        self._names = aiohttp.ThreadedResolver()
        self._is_public = is_public

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._names.resolve(host, port, family)
        if not all(self._is_public(each["host"]) for each in addresses):
            raise NotFetched("its host is not public")
        return addresses

    async def close(self) -> None:
        await self._names.close()


@asynccontextmanager
async def opened(
    address: str, *, is_public: Callable[[str], bool] = is_public
) -> AsyncIterator[tuple[int | None, AsyncIterator[bytes]]]:
    """Request a file; return its size, if it is known, and its content.

    :raises NotFetched: if the address is not public, or has no file
    """
    connector = aiohttp.TCPConnector(resolver=_Checked(is_public), use_dns_cache=False)
    try:
        async with aiohttp.ClientSession(
            connector=connector, timeout=TIMEOUT, cookie_jar=aiohttp.DummyCookieJar()
        ) as client:
            url = URL(address)
            for _ in range(REDIRECTS + 1):
                _check(url, is_public)
                async with client.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as response:
                    if response.status in (301, 302, 303, 307, 308) and "Location" in response.headers:
                        url = url.join(URL(response.headers["Location"]))
                        continue
                    if response.status != 200:
                        raise NotFetched(f"its response has the status {response.status}")
                    yield response.content_length, response.content.iter_chunked(PIECE)
                    return
            raise NotFetched(f"it has more than {REDIRECTS} redirects")
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        raise NotFetched(f"it cannot be reached ({type(error).__name__})") from None


def _check(url: URL, is_public: Callable[[str], bool]) -> None:
    """Check what is not resolved: a scheme, and an IP address instead of a name."""
    if url.scheme not in ("http", "https") or not url.host or url.user or url.password:
        raise NotFetched("it is no web address without a user")
    try:
        ip_address(url.host.partition("%")[0])
    except ValueError:
        return
    if not is_public(url.host):
        raise NotFetched("its host is not public")
