"""Performs calls: `Client.send` blocks on requests, `Client.asend` awaits on aiohttp. Importing it loads both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import aiohttp

from airflow_crew_provider.client.async_exchange import NETWORK_ERRORS, sessions
from airflow_crew_provider.client.deployment import LARGE_BODY, Deployment
from airflow_crew_provider.client.sync_exchange import Exchange, within
from airflow_crew_provider.client.transport_errors import no_answer
from airflow_crew_provider.core import endpoints, responses
from airflow_crew_provider.core.endpoints import Call
from airflow_crew_provider.core.responses import HttpResponse
from airflow_crew_provider.exceptions import CrewError

T = TypeVar("T")


class Client:
    """Performs calls against one deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.mask = deployment.mask

    def send(self, call: Call[T], *, timeout: float | None = None, secrets: tuple[str, ...] = ()) -> T:
        """Perform a call and return what its answer says.

        :param timeout: seconds that the whole exchange may take, if less than the deployment's own
        :param secrets: further texts of the request that no error may show
        """
        total = self._total(call, timeout)
        asked = Exchange(self.deployment, call, total)
        return self._finish(call, within(total, asked), lambda: asked.sent, secrets)

    async def asend(self, call: Call[T], *, timeout: float | None = None) -> T:  # noqa: ASYNC109 - the same as send
        """Perform a call as `send` does, awaiting."""
        total = self._total(call, timeout)
        if call.polled is not None:
            ends = time.monotonic() + total
            answer = await sessions.poll_with_others(self.deployment, call.polled, total)
            if answer is not None:
                # What came with the answers to others may not be what the service says of this one.
                with suppress(CrewError):
                    return await self._aread(call, answer)
            total = max(total / 2, ends - time.monotonic())
        sent = call.starts_something
        result: HttpResponse | Exception
        try:
            result = await sessions.exchange(self.deployment, call, total)
        except NETWORK_ERRORS as error:
            sent = sent and not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError)
            result = error
        return await self._aread(call, result, sent)

    async def _aread(self, call: Call[T], result: HttpResponse | Exception, sent: bool = False) -> T:
        if isinstance(result, HttpResponse) and len(result.body) > LARGE_BODY:
            return await asyncio.to_thread(self._finish, call, result, lambda: sent)
        return self._finish(call, result, lambda: sent)

    async def hold(self) -> None:
        """Keep the shared session of this loop open until `release`, however many polls come between."""
        sessions.acquire(self.deployment)

    async def release(self) -> None:
        """Release what `hold` acquired; the last one closes the session."""
        await sessions.release(self.deployment)

    def _total(self, call: Call[Any], timeout: float | None) -> float:
        own = self.deployment.total_timeout(call)
        return own if timeout is None else max(0.001, min(own, timeout))

    def _finish(
        self,
        call: Call[T],
        result: HttpResponse | Exception,
        sent: Callable[[], bool],
        secrets: tuple[str, ...] = (),
    ) -> T:
        # Raised outside of any `except`, so that no cause carries a request with its Authorization header.
        mask = responses.masker([*self.deployment.secrets, *secrets]) if secrets else self.mask
        if isinstance(result, HttpResponse):
            return endpoints.read(call, result, mask)
        if isinstance(result, CrewError):
            raise result
        raise no_answer(call, result, sent(), mask, ca_file=self.deployment.ca_file is not None)
