"""One awaited exchange, on aiohttp, in a session that all waits of an event loop share."""

from __future__ import annotations

import asyncio
import os
import ssl
import weakref
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import aiohttp
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies, select_proxy
from yarl import URL

from airflow_crew_provider import api
from airflow_crew_provider.answers import Answer
from airflow_crew_provider.api import Call
from airflow_crew_provider.client.deployment import MOST_REDIRECTS, Deployment, lower_names, refuse_large
from airflow_crew_provider.exceptions import CrewProtocolError

NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError, CrewProtocolError)


async def exchange(session: aiohttp.ClientSession, deployment: Deployment, call: Call[Any], total: float) -> Answer:
    url = deployment.base_url + call.path
    for _ in range(MOST_REDIRECTS):
        answer = await _ask(session, deployment, call, url, total)
        following = api.redirect(call, url, answer)
        if following is None:
            break
        url = following
    return answer


async def _ask(
    session: aiohttp.ClientSession, deployment: Deployment, call: Call[Any], url: str, total: float
) -> Answer:
    async with session.request(
        call.method,
        URL(url, encoded=True),
        json=call.body,
        headers={**call.headers, **deployment.request_headers()},
        timeout=aiohttp.ClientTimeout(total=total, sock_connect=min(total, deployment.timeout)),
        allow_redirects=False,
    ) as response:
        body = bytearray()
        async for chunk in response.content.iter_chunked(65536):
            body += chunk
            refuse_large(call, body)
        return Answer(response.status, lower_names(response.headers), bytes(body))


class Sessions:
    """Sessions of aiohttp, one for each event loop and deployment, closed when nobody uses them."""

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[Any, dict[Deployment, _Shared]] = weakref.WeakKeyDictionary()

    def acquire(self, deployment: Deployment) -> aiohttp.ClientSession:
        """Count one more user; there is no await between the look-up and the insert."""
        here = self._by_loop.setdefault(asyncio.get_running_loop(), {})
        shared = here.setdefault(deployment, _Shared())
        if shared.session is None:
            connector = aiohttp.TCPConnector(ssl=_tls(deployment.verify), limit=100, ttl_dns_cache=60)
            shared.session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                # Once for a session: reading the environment costs more than all else that a look does here.
                proxy=deployment.proxy or select_proxy(deployment.base_url, get_environ_proxies(deployment.base_url)),
            )
        shared.users += 1
        return shared.session

    async def release(self, deployment: Deployment) -> None:
        here = self._by_loop.get(asyncio.get_running_loop(), {})
        shared = here.get(deployment)
        if shared is None:
            return
        shared.users -= 1
        if shared.users == 0 and shared.session is not None:
            del here[deployment]
            await shared.session.close()

    @asynccontextmanager
    async def lease(self, deployment: Deployment):
        session = self.acquire(deployment)
        try:
            yield session
        finally:
            await self.release(deployment)


@dataclass(eq=False)
class _Shared:
    session: aiohttp.ClientSession | None = None
    users: int = 0


sessions = Sessions()


def _tls(verify: bool | str) -> ssl.SSLContext | bool:
    if verify is False:
        return False
    environment = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    return _tls_context(verify if isinstance(verify, str) else environment or DEFAULT_CA_BUNDLE_PATH)


@lru_cache(maxsize=8)
def _tls_context(ca_file: str) -> ssl.SSLContext:
    """Trust what requests trusts, so that worker and triggerer agree on a certificate."""
    where = {"capath": ca_file} if os.path.isdir(ca_file) else {"cafile": ca_file}
    return ssl.create_default_context(**where)  # type: ignore[arg-type]
