"""One awaited exchange, on aiohttp, in a session that all waits of an event loop share."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
import weakref
from functools import lru_cache, partial
from typing import Any

import aiohttp
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies, select_proxy
from yarl import URL

from airflow_crew_provider.client.batch_polls import BatchPolls
from airflow_crew_provider.client.deployment import LARGEST_BODY, MOST_REDIRECTS, Deployment, too_large
from airflow_crew_provider.core import endpoints
from airflow_crew_provider.core.capped_body import BodyTooLarge, acollect
from airflow_crew_provider.core.endpoints import Call
from airflow_crew_provider.core.responses import HttpResponse
from airflow_crew_provider.exceptions import CrewProtocolError

NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError, CrewProtocolError)
MOST_SOCKETS = 100  # of one deployment, however many wait: a slow one cannot use up those of others
KEPT_ALIVE = 75.0  # seconds; as servers and load balancers usually do, and longer than most poll intervals
SMALL_BODY = 64 * 1024


class SharedSession:
    """A session of aiohttp for one deployment, shared by all waits of an event loop."""

    def __init__(self, deployment: Deployment) -> None:
        self.users = 0
        self._deployment = deployment
        self._ca_file = deployment.ca_file
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_SOCKETS, ttl_dns_cache=60, keepalive_timeout=KEPT_ALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=deployment.request_headers(),
            # Once for a session: reading the environment costs more than all else that a poll does here.
            proxy=deployment.proxy or select_proxy(deployment.base_url, get_environ_proxies(deployment.base_url)),
        )
        self._usual_timeout = self._timeout(deployment.timeout)
        # Half of the time, so that the other half is left for a poll of its own.
        self._batch = BatchPolls(partial(self._perform, total=deployment.timeout / 2), NETWORK_ERRORS)

    async def exchange(self, call: Call[Any], total: float) -> HttpResponse:
        """Perform a call within ``total`` seconds."""
        answer = await self._perform(call, total)
        if call.polled is not None:
            self._batch.note(answer)
        return answer

    def polls_together(self, total: float) -> bool:
        """Whether a poll of ``total`` seconds may go with those of other waits."""
        return self._batch.offered and total >= self._deployment.timeout

    async def poll_with_others(self, kickoff_id: str) -> HttpResponse | None:
        """Poll together with other waits; None if it has to be polled alone."""
        return await self._batch.ask(kickoff_id)

    async def _perform(self, call: Call[Any], total: float) -> HttpResponse:
        """Perform a call within ``total`` seconds, redirects included."""
        url, ends = self._deployment.base_url + (call.target or call.path), time.monotonic() + total
        for _ in range(MOST_REDIRECTS):
            answer = await self._ask(call, url, total)
            following = endpoints.redirect(call, url, answer)
            if following is None:
                break
            url, total = following, max(0.001, ends - time.monotonic())
        return answer

    async def _ask(self, call: Call[Any], url: str, total: float) -> HttpResponse:
        async with self._session.request(
            call.method,
            URL(url, encoded=True),
            json=call.body,
            headers=call.headers or None,
            timeout=self._usual_timeout if total == self._deployment.timeout else self._timeout(total),
            allow_redirects=False,
            ssl=self._tls(),
        ) as response:
            return HttpResponse(response.status, response.headers, await _body(call, response))

    def _tls(self) -> ssl.SSLContext | bool:
        """Return the context of one request: a CA file that was replaced since the last one is read again."""
        if self._deployment.verify is False or self._deployment.base_url.startswith("http:"):
            return False
        if self._ca_file is None:
            return _tls_context(DEFAULT_CA_BUNDLE_PATH)
        seen = os.stat(self._ca_file)
        return _tls_context(self._ca_file, (seen.st_mtime_ns, seen.st_size, seen.st_ino))

    def _timeout(self, total: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=total, sock_connect=min(total, self._deployment.timeout))

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


async def _body(call: Call[Any], response: aiohttp.ClientResponse) -> bytes:
    """Read a body up to its limit; a small one, whose length is known, without streaming."""
    if (response.content_length or LARGEST_BODY) <= SMALL_BODY and "Content-Encoding" not in response.headers:
        return await response.read()
    try:
        return await acollect(response.content.iter_chunked(65536), LARGEST_BODY)
    except BodyTooLarge:
        raise too_large(call) from None


class SessionPool:
    """Sessions, one for each event loop and deployment, closed when no longer used."""

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[Any, dict[Deployment, SharedSession]] = weakref.WeakKeyDictionary()

    async def exchange(self, deployment: Deployment, call: Call[Any], total: float) -> HttpResponse:
        """Perform a call in the session that this loop shares, which is opened if needed."""
        shared = self.acquire(deployment)
        try:
            return await shared.exchange(call, total)
        finally:
            await self.release(deployment)

    async def poll_with_others(self, deployment: Deployment, kickoff_id: str, total: float) -> HttpResponse | None:
        """Poll in the session that this loop shares, together with its other waits; None to poll alone."""
        shared = self._by_loop.get(asyncio.get_running_loop(), {}).get(deployment)
        if shared is None or not shared.polls_together(total):
            return None
        self.acquire(deployment)
        try:
            return await shared.poll_with_others(kickoff_id)
        finally:
            await self.release(deployment)

    def acquire(self, deployment: Deployment) -> SharedSession:
        """Count one more user; there is no await between the look-up and the insert."""
        here = self._by_loop.setdefault(asyncio.get_running_loop(), {})
        shared = here.get(deployment)
        if shared is None:
            shared = here[deployment] = SharedSession(deployment)
        shared.users += 1
        return shared

    async def release(self, deployment: Deployment) -> None:
        here = self._by_loop.get(asyncio.get_running_loop(), {})
        shared = here.get(deployment)
        if shared is None:
            return
        shared.users -= 1
        if shared.users == 0:
            del here[deployment]
            await shared.close()


sessions = SessionPool()


@lru_cache(maxsize=8)
def _tls_context(ca_file: str, version: tuple[int, ...] = ()) -> ssl.SSLContext:
    """Trust what requests trusts, so that worker and triggerer agree on a certificate."""
    where = {"capath": ca_file} if os.path.isdir(ca_file) else {"cafile": ca_file}
    return ssl.create_default_context(**where)  # type: ignore[arg-type]
