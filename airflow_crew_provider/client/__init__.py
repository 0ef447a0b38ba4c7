"""The one place where bytes travel: `Client.send` blocking on requests, `Client.asend` awaiting on aiohttp.

Law: connecting may be retried, a POST that may have arrived is never sent again. Every exchange ends within its
total time, every body within `LARGEST_BODY`, and the token goes to the connection's own origin only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp

from airflow_crew_provider import answers, api
from airflow_crew_provider.answers import Answer
from airflow_crew_provider.api import Call
from airflow_crew_provider.client.awaiting import NETWORK_ERRORS, exchange, sessions
from airflow_crew_provider.client.blocking import Exchange, within
from airflow_crew_provider.client.deployment import LARGEST_BODY, Deployment, check_header
from airflow_crew_provider.client.failures import no_answer
from airflow_crew_provider.exceptions import CrewError

__all__ = ["LARGEST_BODY", "Client", "Deployment", "check_header"]

T = TypeVar("T")

# Above this a body is read in a thread, so that other triggers of the same loop go on meanwhile.
LARGE_BODY = 128 * 1024


class Client:
    """Performs calls against one deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._mask = answers.masker(deployment.secrets)

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
        sent = False
        result: Answer | Exception
        try:
            async with sessions.lease(self.deployment) as session:
                sent = call.starts_something
                result = await asyncio.wait_for(exchange(session, self.deployment, call, total), total + 1)
        except NETWORK_ERRORS as error:
            sent = sent and not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError)
            result = error
        if isinstance(result, Answer) and len(result.body) > LARGE_BODY:
            return await asyncio.to_thread(self._finish, call, result, lambda: sent)
        return self._finish(call, result, lambda: sent)

    async def hold(self) -> None:
        """Keep the shared session of this loop open until `release`, however many looks come between."""
        sessions.acquire(self.deployment)

    async def release(self) -> None:
        """Give back what `hold` took; the last one closes the session."""
        await sessions.release(self.deployment)

    def _total(self, call: Call[Any], timeout: float | None) -> float:
        own = self.deployment.total_timeout(call)
        return own if timeout is None else max(0.001, min(own, timeout))

    def _finish(
        self,
        call: Call[T],
        result: Answer | Exception,
        sent: Callable[[], bool],
        secrets: tuple[str, ...] = (),
    ) -> T:
        # Raised outside of any `except`, so that no cause carries a request with its Authorization header.
        mask = answers.masker([*self.deployment.secrets, *secrets]) if secrets else self._mask
        if isinstance(result, Answer):
            return api.read(call, result, mask)
        if isinstance(result, CrewError):
            raise result
        raise no_answer(call, result, sent(), mask)
