"""Sends one webhook: sets its headers, signs it, and determines whether it was delivered.

Redirects are never followed, so that a credential reaches only the address for which it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver

from crew_service.engine import machine
from crew_service.storage.webhooks import without_credentials

KEPT_SECONDS = 1.0  # for an unused session
STANDARD = "whsec_"  # prefix of a Standard Webhooks secret; see https://www.standardwebhooks.com
_opened: ContextVar[list[asyncio.Transport] | None] = ContextVar("opened", default=None)


class Loop(asyncio.SelectorEventLoop):
    """An event loop that records a session's connections."""

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        transport, protocol = await super().create_connection(*args, **options)
        if (opened := _opened.get()) is not None:
            opened.append(transport)
        return transport, protocol


class Session:
    """Sends to one receiver, one webhook at a time. A session belongs to one owner and keeps no cookies.

    Its connections are aborted at the end: closing them would wait for a receiver that has stopped reading, and would
    keep the file descriptor and the body until then.
    """

    def __init__(self, timeout: float, names: AbstractResolver) -> None:
        self._opened: list[asyncio.Transport] = []
        self.client = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout),
            connector=aiohttp.TCPConnector(resolver=names),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def use(self) -> None:
        """Record the connections that this task opens from now on."""
        self._opened[:] = [transport for transport in self._opened if not transport.is_closing()]
        _opened.set(self._opened)

    async def close(self) -> None:
        for transport in self._opened:
            transport.abort()
        await self.client.close()


class Sessions:
    """Sessions for a series of sends. Only a few unused ones are kept, because each uses a file descriptor."""

    def __init__(self, timeout: float, most: int) -> None:
        """:param most: how many to keep"""
        self._timeout = timeout
        self._most = most
        self._idle: dict[Session, tuple[Hashable, asyncio.TimerHandle]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def turn(
        self, receiver: Hashable, names: AbstractResolver, keep: Callable[[], bool]
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """Yield a session's client for a receiver's turn; afterwards, keep the session only if `keep` returns True."""
        session = self._take(receiver) or Session(self._timeout, names)
        session.use()
        stays = False
        try:
            yield session.client
            stays = keep() and len(self._idle) < self._most
        finally:
            if stays:
                later = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._end, session)
                self._idle[session] = (receiver, later)
            else:
                await session.close()

    def _take(self, receiver: Hashable) -> Session | None:
        for session, (whose, later) in self._idle.items():
            if whose == receiver:
                later.cancel()
                del self._idle[session]
                return session
        return None

    def _end(self, session: Session) -> None:
        del self._idle[session]
        closing = asyncio.ensure_future(session.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for session, (_, later) in self._idle.items():
            later.cancel()
            await session.close()
        self._idle.clear()
        await asyncio.gather(*self._closing)


async def send(
    client: aiohttp.ClientSession,
    url: str,
    body: bytes | AsyncIterable[bytes],
    *,
    key: str,
    authentication: Any,
    secret: str | None,
    now: float,
) -> str | None:
    """Send the body; return None if the receiver accepted it, otherwise the problem.

    :param body: if it comes in pieces, they are read twice: for the size and signature, then for sending
    """
    if authentication:  # overrides a user and password in the address: only one Authorization header is possible
        url = without_credentials(url)
    try:
        proof, size = Signature(secret, int(now), key), 0
        async for piece in body if not isinstance(body, bytes) else _alone(body):
            proof.add(piece)
            size += len(piece)
        headers = {"Content-Type": "application/json", "Content-Length": str(size), "Webhook-Id": key}
        headers |= _proof(authentication) | proof.headers
        async with client.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            return None if 200 <= answer.status < 300 else f"HTTP {answer.status}"
    except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, OSError) as error:
        if machine.is_trouble(error):
            raise
        return type(error).__name__


async def _alone(body: bytes) -> AsyncIterator[bytes]:
    yield body


def answered(problem: str | None) -> bool:
    """Return whether the receiver sent any response."""
    return problem is None or problem.startswith("HTTP ")


class Signature:
    """Signs as live deployments do, so that receivers verify both in the same way.

    A `whsec_` secret adds the Standard Webhooks signature.

    :param secret: None for no signature headers
    """

    def __init__(self, secret: str | None, timestamp: int, key: str) -> None:
        self._timestamp = timestamp
        standard = standard_key(secret) if secret else None
        self._live = hmac.new(secret.encode(), b"%d." % timestamp, hashlib.sha256) if secret else None
        begin = b"%b.%d." % (key.encode(), timestamp)
        self._standard = hmac.new(standard, begin, hashlib.sha256) if standard else None

    def add(self, piece: bytes) -> None:
        for each in filter(None, (self._live, self._standard)):
            each.update(piece)

    @property
    def headers(self) -> dict[str, str]:
        signed_headers: dict[str, str] = {}
        if self._live:
            signed_headers |= {"X-CrewAI-Timestamp": str(self._timestamp)}
            signed_headers |= {"X-CrewAI-Signature": f"sha256={self._live.hexdigest()}"}
        if self._standard:
            signed = b64encode(self._standard.digest()).decode()
            signed_headers |= {"Webhook-Timestamp": str(self._timestamp), "Webhook-Signature": f"v1,{signed}"}
        return signed_headers


def signature(secret: str, body: bytes, timestamp: int, key: str) -> dict[str, str]:
    """Return the signature headers for a complete body."""
    signing = Signature(secret, timestamp, key)
    signing.add(body)
    return signing.headers


def standard_key(secret: str) -> bytes | None:
    """Return the key in a Standard Webhooks secret, which begins with `whsec_`; None for any other secret.

    :raises ValueError: if the rest is not base64
    """
    encoded = secret.removeprefix(STANDARD)
    if encoded == secret:
        return None
    key = b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    if not key:
        raise ValueError("the secret is empty")
    return key


def _proof(authentication: Any) -> dict[str, str]:
    """Return the requested Authorization header."""
    match authentication:
        case {"strategy": "bearer", "token": token}:
            return {"Authorization": f"Bearer {token}"}
        case {"strategy": "basic", "username": username, "password": password}:
            pair = f"{username}:{password}".encode()
            return {"Authorization": f"Basic {b64encode(pair).decode()}"}
    return {}
