"""How tasks poll and wait: the same steps block in a worker and are awaited in a triggerer.

The steps are written once, as coroutines; only their I/O and pauses differ (`Blocking`, `Awaiting`). A worker's
coroutines never suspend, so it runs them without an event loop (`finished`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.endpoints import Call
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.exceptions import CrewError, CrewNotFound, CrewProtocolError
from airflow_crew_provider.models import Execution
from airflow_crew_provider.wait.watch import (
    GAVE_UP,
    Outcome,
    Refresh,
    Reply,
    Results,
    Sleep,
    StatusRequest,
    Step,
    Watch,
    steps,
)

T = TypeVar("T")


class Source(Protocol):
    """A source of questions for a person that the status does not show."""

    async def read(self, kickoff_id: str, reply: Reply, *, blocking: bool) -> Reply:
        """Return the question if the reply does not contain it, or else the reply; log errors instead of raising them.

        With ``blocking``, the coroutine never suspends.
        """


@dataclass(frozen=True)
class Blocking:
    """The transport of a worker; its coroutines never suspend."""

    hook: ConnectedCrew
    blocking: ClassVar = True

    async def send(self, call: Call[T], timeout: float | None, suffices: Callable[[T], bool] | None = None) -> T:  # noqa: ASYNC109
        """Send a call; ``suffices`` is only used by transports that can combine polls."""
        return self.hook.client.send(call, timeout=timeout)

    async def refresh(self, *, at_once: bool) -> bool:
        """Look up the connection again; return whether it has changed."""
        return self.hook.refresh(at_once=at_once)

    async def pause(self, seconds: float) -> None:
        """Pause."""
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs here


@dataclass(frozen=True)
class Awaiting:
    """The transport of a triggerer."""

    hook: ConnectedCrew
    blocking: ClassVar = False

    # No coroutine wraps another here: each layer would be resumed at each poll, and use memory during each wait.
    def send(
        self, call: Call[T], timeout: float | None, suffices: Callable[[T], bool] | None = None
    ) -> Coroutine[Any, Any, T]:
        """Send a call without blocking the event loop."""
        return self.hook.client.asend(call, timeout=timeout, suffices=suffices)

    async def refresh(self, *, at_once: bool) -> bool:
        """Look up the connection again without blocking the event loop; return whether it has changed."""
        return await self.hook.arefresh(at_once=at_once)

    def pause(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Pause while other waits continue."""
        return asyncio.sleep(seconds)


Transport = Blocking | Awaiting


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("A worker's wait was suspended, but no event loop would resume it")


class Poller:
    """Polls the status of executions, then reads another source of questions.

    :param hook: the hook for the deployment
    :param source: a source of questions that the status does not show
    """

    def __init__(self, hook: ConnectedCrew, source: Source | None = None) -> None:
        self.hook, self._source = hook, source
        self._blocking, self._awaiting = Blocking(hook), Awaiting(hook)
        self._polled: tuple[str, Call[Execution]] | None = None

    def poll(self, kickoff_id: str, timeout: float | None = None) -> Reply:
        """Poll an execution; return an error instead of raising it, so that a `Watch` can evaluate it."""
        return finished(self._poll(self._blocking, kickoff_id, timeout))

    def poll_patiently(self, kickoff_id: str) -> Execution:
        """Poll until a response shows the state, tolerating the same failures as a wait.

        An unknown state is not enough, because a decision depends on this poll. On a live deployment, any state is
        enough, because nothing about an answer depends on it.

        :raises CrewNotFound: the service does not know the id
        """
        return self.patiently(kickoff_id, partial(self._conclusive, kickoff_id))

    def _conclusive(self, kickoff_id: str) -> Execution:
        reply = self.poll(kickoff_id)
        if isinstance(reply, CrewError):
            raise reply
        if not (reply.state_is_known or reply.is_live):
            raise CrewProtocolError("GET /status returned an unknown state")
        return reply

    def patiently(
        self, kickoff_id: str, request: Callable[[], T], failed: Callable[[CrewError], object] = lambda error: None
    ) -> T:
        """Return the result of a request, which is repeated for as long as a wait tolerates its failures.

        :param failed: called with each tolerated failure
        :raises CrewError: the last failure
        """
        watch = Watch(kickoff_id=kickoff_id, started=time.time(), poll_interval=1.0)
        while True:
            try:
                return request()
            except CrewError as error:
                if isinstance(error, CrewNotFound) or watch.failed(error, now=time.time()) is not None:
                    raise
                failed(error)
            with suppress(CrewError):
                self.hook.refresh(at_once=False)
            time.sleep(watch.pause(now=time.time()))

    def wait(self, watch: Watch) -> Outcome:
        """Wait, blocking, until the watch has an outcome."""
        outcome = finished(self._drive(watch, self._blocking))
        assert outcome is not None
        return outcome

    def poll_once(self, watch: Watch) -> Outcome | None:
        """Take one step of a wait; return None if it continues."""
        return finished(self._drive(watch, self._blocking, once=True))

    async def await_outcome(self, watch: Watch) -> Outcome:
        """Wait until the watch has an outcome, without blocking the event loop."""
        outcome = await self._drive(watch, self._awaiting)
        assert outcome is not None
        return outcome

    async def _drive(self, watch: Watch, transport: Transport, *, once: bool = False) -> Outcome | None:
        """Take the steps of a wait until it ends; with ``once``, stop at the first pause and return None."""

        def say(line: str) -> None:
            # Log at WARNING if a person is needed but nobody is asked.
            log = self.hook.log.warning if watch.passes_question else self.hook.log.info
            log("%s", self.hook.mask_for_log(line))

        walk = steps(watch, time.time, say)
        step: Step = next(walk)
        while not (once and isinstance(step, Sleep)):
            try:
                step = walk.send(await self._take(step, watch, transport))
            except StopIteration as end:
                outcome: Outcome = end.value
                if outcome.kind != GAVE_UP:
                    return outcome
                # Name the connection, which may need to be corrected.
                return replace(outcome, message=f"{self.hook.place}: {outcome.message}")
        return None

    def _take(self, step: Step, watch: Watch, transport: Transport) -> Coroutine[Any, Any, Any]:
        if isinstance(step, Sleep):
            return transport.pause(step.seconds)
        if isinstance(step, StatusRequest):
            # A combined response is used only if it shows that the wait continues.
            return self._poll(
                transport,
                watch.kickoff_id,
                step.timeout,
                lambda execution: watch.goes_on_after(execution, now=time.time()),
            )
        return self._look_up(step, watch, transport)

    async def _look_up(self, step: Refresh | Results, watch: Watch, transport: Transport) -> Any:
        try:
            if isinstance(step, Results):
                return await transport.send(endpoints.ended_tasks(watch.kickoff_id), step.timeout)
            return await transport.refresh(at_once=step.at_once)
        except CrewError as error:
            return error

    async def _poll(
        self,
        transport: Transport,
        kickoff_id: str,
        timeout: float | None,  # noqa: ASYNC109 - passed on
        suffices: Callable[[Execution], bool] | None = None,
    ) -> Reply:
        metrics.polled(self.hook.crew_conn_id, in_triggerer=not transport.blocking)
        reply: Reply
        try:
            if self._polled is None or self._polled[0] != kickoff_id:  # created once per wait
                self._polled = kickoff_id, endpoints.polls(kickoff_id)
            reply = await transport.send(self._polled[1], timeout, suffices)
        except CrewError as error:
            reply = error
        if self._source is None:
            return reply
        result = await self._source.read(kickoff_id, reply, blocking=transport.blocking)
        if result is not reply and isinstance(result, Execution) and isinstance(reply, Execution):
            # Only the status contains these: a webhook reports neither usage, nor the page, nor the dialect.
            return replace(result, usage=reply.usage, view=reply.view, has_details=reply.has_details, raw=reply.raw)
        return result
