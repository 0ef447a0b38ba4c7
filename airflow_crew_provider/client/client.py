"""Performs calls: `Client.send` blocks and uses requests; `Client.asend` is async and uses aiohttp.

Importing this module loads both libraries.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import aiohttp
import requests

from airflow_crew_provider.api import endpoints, responses
from airflow_crew_provider.api.endpoints import Call
from airflow_crew_provider.api.responses import HttpResponse
from airflow_crew_provider.client.asynchronous import NETWORK_ERRORS, SharedSession, sessions
from airflow_crew_provider.client.blocking import Exchange, never_connected, within
from airflow_crew_provider.client.deployment import LARGE_BODY, Deployment
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewOutcomeUnknown

T = TypeVar("T")
Traced = Callable[[Call[Any], str], AbstractContextManager[tuple[Mapping[str, str], Callable[[int], None]]]]


def _untraced(
    call: Call[Any], base_url: str
) -> AbstractContextManager[tuple[Mapping[str, str], Callable[[int], None]]]:
    return nullcontext(({}, lambda code: None))


class Client:
    """Performs calls against one deployment.

    :param traced: opens a span for a blocking call to a base URL; yields the span's headers and a function that records
        the status code
    """

    def __init__(self, deployment: Deployment, traced: Traced = _untraced) -> None:
        self.deployment = deployment
        self._traced = traced
        self._held: SharedSession | None = None
        self.mask = deployment.mask

    def send(
        self,
        call: Call[T],
        *,
        timeout: float | None = None,
        secrets: tuple[str, ...] = (),
        sink: Callable[[bytes], object] | None = None,
    ) -> T:
        """Perform a call and return the value of its response.

        :param sink: takes a streamed body's pieces as they arrive; what it raises ends the call
        :param timeout: limit in seconds for the whole exchange, if less than the deployment's
        :param secrets: further strings in the request that errors must not show
        """
        total = self._total(call, timeout)
        with self._traced(call, self.deployment.base_url) as (headers, answered):
            exchange = Exchange(self.deployment, call, total, headers, sink)
            result = within(total, exchange)
            if isinstance(result, HttpResponse):
                answered(result.status)
            return self._finish(call, result, exchange.sent, secrets)

    async def asend(
        self,
        call: Call[T],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the same as send
        suffices: Callable[[T], bool] | None = None,
    ) -> T:
        """Do what `send` does without blocking the event loop.

        :param suffices: decides whether the value of a combined poll is enough; if not, the call polls alone
        """
        total, sent = self._total(call, timeout), call.starts_something
        result: HttpResponse | Exception
        shared = sessions.acquire(self.deployment)
        try:
            may_wait = shared.batch.offered and total >= self.deployment.timeout
            if call.polled is not None and suffices is not None and may_wait:
                ends = time.monotonic() + total
                reply = await shared.batch.ask(call.polled, lambda answer: self._finish(call, answer, sent))
                if reply is not None and suffices(reply):
                    return reply
                total = max(total / 2, ends - time.monotonic())
            try:
                result = await shared.exchange(call, total)
            except NETWORK_ERRORS as error:
                sent = sent and not isinstance(error, BEFORE_SENDING)
                result = error
        finally:
            await sessions.release(shared)
        if isinstance(result, HttpResponse) and len(result.body) > LARGE_BODY:
            return await asyncio.to_thread(self._finish, call, result, sent)
        return self._finish(call, result, sent)

    async def hold(self) -> None:
        """Keep this loop's shared session open until `release`, across any number of polls."""
        self._held = sessions.acquire(self.deployment)

    async def release(self) -> None:
        """Release the session that `hold` acquired; the last user closes it."""
        held, self._held = self._held, None
        if held is not None:
            await sessions.release(held)

    def _total(self, call: Call[Any], timeout: float | None) -> float:
        own = self.deployment.total_timeout(call)
        return own if timeout is None else max(0.001, min(own, timeout))

    def _finish(
        self,
        call: Call[T],
        result: HttpResponse | Exception,
        sent: bool,
        secrets: tuple[str, ...] = (),
    ) -> T:
        # Raised outside any `except`, so that the error has no cause that contains the Authorization header.
        mask = responses.masker([*self.deployment.secrets, *secrets]) if secrets else self.mask
        if isinstance(result, HttpResponse):
            return endpoints.read(call, result, mask)
        if isinstance(result, CrewError):
            raise result
        raise no_answer(call, result, sent, mask, ca_file=self.deployment.ca_file is not None)


BEFORE_SENDING = (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError, requests.exceptions.InvalidProxyURL)
UNTRUSTED = (ssl.SSLCertVerificationError, aiohttp.ClientConnectorCertificateError)
# The reasons that OpenSSL gives if the peer does not speak TLS.
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
HINT = " (the peer does not speak TLS: a Host without a scheme means https; if you mean http, write http:// before it)"


def no_answer(call: Call[Any], error: Exception, sent: bool, mask: responses.Mask, *, ca_file: bool) -> CrewError:
    """Return the error for a failed exchange.

    :param sent: whether the request may have arrived
    :param ca_file: whether a CA file decides which certificates are trusted
    """
    reason = _reason(error, mask)
    if call.starts_something and sent:
        return CrewOutcomeUnknown(
            f"{call.method} {call.path} was sent, but its response was lost ({reason}): "
            "it is unknown whether the service acted on it"
        )
    return CrewConnectionError(
        f"No response to {call.method} {call.path}: {reason}; nothing was started",
        permanent=_has(error, *UNTRUSTED, requests.exceptions.InvalidURL),
        renewable=ca_file and _has(error, *UNTRUSTED),
        unreachable=never_connected(error) or isinstance(error, aiohttp.ClientConnectorError) or _is_not_tls(error),
    )


def _reason(error: BaseException, mask: responses.Mask) -> str:
    """Return the innermost message, which is the most specific, without object addresses."""
    if isinstance(error, TimeoutError | requests.Timeout | aiohttp.ServerTimeoutError):
        return _hidden(str(error), mask)[:300] or "it timed out"
    *_, error = _chain(error)
    text = str(error).rpartition("object at 0x")[2] if "object at 0x" in str(error) else str(error)
    reason = _hidden(text, mask)[:300] or type(error).__name__
    return reason + HINT if _is_not_tls(error) else reason


def _is_not_tls(error: BaseException) -> bool:
    *_, innermost = _chain(error)
    return any(word in str(innermost).upper().replace(" ", "_") for word in NOT_TLS)


def _hidden(text: str, mask: responses.Mask) -> str:
    """Mask secrets, and anything before a URL's host: a library may quote a proxy's credential in its own way."""
    return re.sub(r"(?<=//)[^/\s]*(?=@)", "***", responses.in_one_line(text, mask))


def _has(error: Exception, *kinds: type[Exception]) -> bool:
    return any(isinstance(each, kinds) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Walk from an error to its causes; urllib3 keeps them in `reason` or in the arguments."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        inner = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
        error = next((each for each in inner if isinstance(each, BaseException)), None)
