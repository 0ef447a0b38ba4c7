"""Asynchronous requests with aiohttp; all waits for one deployment in one event loop share a session.

If the service supports it, polls from several waits that are due at almost the same time are sent as one request.
Invariant: a wait ends, or counts a failure, only because of the response to its own poll. If anything goes wrong with a
combined request, its waits poll alone and try combining again later: a gateway may forward only the documented paths.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import aiohttp
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from yarl import URL

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.endpoints import BATCH_OFFER, STATUSES, Call, portions, statuses
from airflow_crew_provider.api.responses import BodyTooLarge, HttpResponse, acollect
from airflow_crew_provider.client.deployment import LARGE_BODY, LARGEST_BODY, MOST_REDIRECTS, Deployment, too_large
from airflow_crew_provider.client.proxies import proxy_of
from airflow_crew_provider.exceptions import CrewError, CrewProtocolError

MOMENT = 0.1  # seconds: less than a tenth of the shortest usual poll interval
# How long waits poll alone after a failed combined request, in seconds; doubled each time, up to the second value.
ALONE, LONGEST_ALONE = 30.0, 900.0

T = TypeVar("T")


class DuePoll(NamedTuple):
    """A wait's poll: how to read its response, and a future for the value (None if the wait must poll alone)."""

    kickoff_id: str
    read: Callable[[HttpResponse], Any]
    value: asyncio.Future[Any]

    def value_in(self, answers: dict[str, HttpResponse]) -> Any:
        """Read the response to this poll; None if there is none or it is an error."""
        # A combined response may differ from the service's response to a single poll.
        with suppress(CrewError):
            return self.read(answers[self.kickoff_id]) if self.kickoff_id in answers else None
        return None


class BatchPolls:
    """Combines the polls of one session.

    :param send: performs a call
    :param errors: the exceptions that `send` raises if there is no response
    """

    def __init__(
        self, send: Callable[[Call[Any]], Awaitable[HttpResponse]], errors: tuple[type[Exception], ...]
    ) -> None:
        self._send = send
        self._errors: tuple[type[Exception], ...] = (*errors, CrewError)
        self._offered, self._troubles, self._not_before = False, 0, 0.0
        self._due: list[DuePoll] = []
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def offered(self) -> bool:
        """Whether the service supports combined requests, and none failed recently."""
        return self._offered and time.monotonic() >= self._not_before

    def note(self, answer: HttpResponse) -> None:
        """Learn from the response to a single poll whether the service supports combined requests."""
        self._offered = answer.headers.get(BATCH_OFFER.lower()) == STATUSES

    def ask(self, kickoff_id: str, read: Callable[[HttpResponse], T]) -> asyncio.Future[T | None]:
        """Poll together with all other waits that are due within `MOMENT`."""
        loop = asyncio.get_running_loop()
        value: asyncio.Future[T | None] = loop.create_future()
        if not self._due:
            loop.call_later(MOMENT, self._send_all)
        self._due.append(DuePoll(kickoff_id, read, value))
        return value

    def _send_all(self) -> None:
        due, self._due = [each for each in self._due if not each.value.done()], []
        ids = list(dict.fromkeys(each.kickoff_id for each in due))
        for portion in portions(ids):
            chosen = set(portion)
            task = asyncio.ensure_future(self._ask([each for each in due if each.kickoff_id in chosen], portion))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _ask(self, due: list[DuePoll], ids: list[str]) -> None:
        values: list[Any] = []
        try:
            if len(ids) > 1:
                values = await self._values(due, ids)
        finally:
            for each, value in zip(due, values or [None] * len(due), strict=True):
                if not each.value.done():
                    each.value.set_result(value)

    async def _values(self, due: list[DuePoll], ids: list[str]) -> list[Any]:
        if self._troubles:
            self._poll_alone()  # for the other waits, until this request has a response
        try:
            values = await self._read(statuses(ids), due)
        except self._errors:
            values = []
        if values:
            self._troubles, self._not_before = 0, 0.0
        else:
            self._troubles += 1
            self._poll_alone()
        return values

    def _poll_alone(self) -> None:
        self._not_before = time.monotonic() + min(ALONE * 2 ** min(self._troubles - 1, 10), LONGEST_ALONE)

    async def _read(self, call: Call[dict[str, HttpResponse]], due: list[DuePoll]) -> list[Any]:
        answer = await self._send(call)

        def read() -> list[Any]:
            answers = endpoints.read(call, answer)
            return [each.value_in(answers) for each in due] if answers else []

        return await asyncio.to_thread(read) if len(answer.body) > LARGE_BODY else read()


# --- sessions ---


NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError, CrewProtocolError)
MOST_SOCKETS = 100  # per deployment, so that a slow one cannot use up the others' sockets
KEPT_ALIVE = 75.0  # seconds; typical of servers and load balancers, and longer than most poll intervals
SMALL_BODY = 64 * 1024


class SharedSession:
    """An aiohttp session for one deployment, shared by all waits on an event loop."""

    def __init__(self, deployment: Deployment) -> None:
        self.users = 0
        self.deployment = deployment
        self._ca_file = deployment.ca_file
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_SOCKETS, ttl_dns_cache=60, keepalive_timeout=KEPT_ALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=deployment.request_headers(),
        )
        self._usual_timeout = self._timeout(deployment.timeout)
        # Half of the timeout, so that the other half is left for a single poll.
        self.batch = BatchPolls(partial(self.exchange, total=deployment.timeout / 2), NETWORK_ERRORS)

    async def exchange(self, call: Call[Any], total: float) -> HttpResponse:
        """Perform a call within ``total`` seconds, including redirects."""
        url, ends = self.deployment.base_url + (call.target or call.path), time.monotonic() + total
        for _ in range(MOST_REDIRECTS):
            answer = await self._ask(call, url, total)
            following = endpoints.redirect(call, url, answer)
            if following is None:
                break
            url, total = following, max(0.001, ends - time.monotonic())
        if call.polled is not None:
            self.batch.note(answer)
        return answer

    async def _ask(self, call: Call[Any], url: str, total: float) -> HttpResponse:
        async with self._session.request(
            call.method,
            URL(url, encoded=True),
            data=call.content,
            headers=call.headers if call.body is None else {**call.headers, "Content-Type": "application/json"},
            timeout=self._usual_timeout if total == self.deployment.timeout else self._timeout(total),
            allow_redirects=False,
            ssl=self._tls(),
            proxy=self._proxy,
        ) as response:
            return HttpResponse(response.status, response.headers, await _body(call, response))

    @cached_property
    def _proxy(self) -> str | None:
        # Looked up once per session: reading the environment costs more than the rest of a poll.
        return proxy_of(self.deployment)

    def _tls(self) -> ssl.SSLContext | bool:
        """Return the TLS context for a request; read the CA file again if it was replaced."""
        if self.deployment.verify is False or self.deployment.base_url.startswith("http:"):
            return False
        if self._ca_file is None:
            return _tls_context(DEFAULT_CA_BUNDLE_PATH)
        stat = os.stat(self._ca_file)
        return _tls_context(self._ca_file, (stat.st_mtime_ns, stat.st_size, stat.st_ino))

    def _timeout(self, total: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=total, sock_connect=min(total, self.deployment.timeout))

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


async def _body(call: Call[Any], response: aiohttp.ClientResponse) -> bytes:
    """Read a body up to its limit; do not stream a small one of known length."""
    if (response.content_length or LARGEST_BODY) <= SMALL_BODY and "Content-Encoding" not in response.headers:
        return await response.read()
    try:
        return await acollect(response.content.iter_chunked(65536), LARGEST_BODY)
    except BodyTooLarge:
        raise too_large(call) from None


class SessionPool:
    """One session per event loop and deployment, closed when no longer used."""

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[Any, dict[Deployment, SharedSession]] = weakref.WeakKeyDictionary()

    def acquire(self, deployment: Deployment) -> SharedSession:
        """Return this loop's session, opened if needed, and count one more user; this method must never await."""
        here = self._by_loop.setdefault(asyncio.get_running_loop(), {})
        shared = here.get(deployment)
        if shared is None:
            shared = here[deployment] = SharedSession(deployment)
        shared.users += 1
        return shared

    async def release(self, shared: SharedSession) -> None:
        """Count one fewer user; the last one closes the session."""
        shared.users -= 1
        if shared.users == 0:
            del self._by_loop[asyncio.get_running_loop()][shared.deployment]
            await shared.close()


sessions = SessionPool()


@lru_cache(maxsize=8)
def _tls_context(ca_file: str, version: tuple[int, ...] = ()) -> ssl.SSLContext:
    """Trust the same certificates as `requests`, so that worker and triggerer agree."""
    where = {"capath": ca_file} if os.path.isdir(ca_file) else {"cafile": ca_file}
    return ssl.create_default_context(**where)  # type: ignore[arg-type]
