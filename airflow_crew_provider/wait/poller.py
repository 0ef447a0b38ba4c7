"""How a task polls and waits: the same steps, blocking in a worker and awaiting in a triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.endpoints import Call
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.exceptions import CrewError, CrewNotFound, CrewProtocolError
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution
from airflow_crew_provider.wait.watch import GAVE_UP, Outcome, Pause, Poll, Results, Step, Watch, steps


class Source(Protocol):
    """Where a question to a person may have arrived that the status does not show."""

    def read(self, kickoff_id: str, reply: Execution | CrewError) -> Execution | CrewError:
        """Return the question in place of a reply that lacks it, else the reply; trouble is logged, not raised."""

    async def aread(self, kickoff_id: str, reply: Execution | CrewError) -> Execution | CrewError:
        """Do what `read` does without blocking the event loop."""

    async def was_asked(self, kickoff_id: str) -> bool:
        """Whether a question to a person has arrived."""


class Poller:
    """Polls the status of executions, and then each further source of questions.

    :param hook: of the deployment
    :param sources: what may know of a question that the status does not show
    """

    def __init__(self, hook: CrewHook, sources: Sequence[Source] = ()) -> None:
        self.hook, self.sources = hook, sources
        self._polled: tuple[str, Call[Execution]] | None = None

    def poll(self, kickoff_id: str, timeout: float | None = None) -> Execution | CrewError:
        """Poll an execution; an error is returned, for a `Watch` to judge."""
        metrics.polled(self.hook.crew_conn_id, in_triggerer=False)
        reply: Execution | CrewError
        try:
            reply = self.hook.client.send(endpoints.status(kickoff_id), timeout=timeout)
        except CrewError as error:
            reply = error
        for source in self.sources:
            reply = _kept_beside(reply, source.read(kickoff_id, reply))
        return reply

    def poll_patiently(self, kickoff_id: str) -> Execution:
        """Poll until there is an answer that tells the state, forgiving what a wait forgives.

        A word that is not known does not tell it, since a decision follows from this poll. A live deployment's
        status decides nothing about an answer, so there any word will do.

        :raises CrewNotFound: if the service does not know the id
        """
        watch = Watch(kickoff_id=kickoff_id, started=time.time(), poll_interval=1.0)
        while True:
            reply = self.poll(kickoff_id)
            if isinstance(reply, Execution):
                if reply.state_is_known or reply.is_live:
                    return reply
                reply = CrewProtocolError("GET /status gave a state that is not known")
            if isinstance(reply, CrewNotFound) or watch.failed(reply, now=time.time()) is not None:
                raise reply
            time.sleep(watch.pause(now=time.time()))

    def wait(self, watch: Watch, *, clock: Callable[[], float] = time.time) -> Outcome:
        """Wait, blocking, until the watch has an outcome."""
        outcome = self._walk(watch, clock, once=False)
        assert outcome is not None
        return outcome

    def poll_once(self, watch: Watch) -> Outcome | None:
        """Take one step of a wait; None if it goes on."""
        return self._walk(watch, time.time, once=True)

    def _teller(self, watch: Watch) -> Callable[[str], None]:
        """Return what logs the news of a watch: at WARNING where somebody is needed whom nobody asks."""
        log = self.hook.log
        return lambda line: (log.warning if watch.passes_question else log.info)("%s", self.hook.mask_for_log(line))

    def _walk(self, watch: Watch, clock: Callable[[], float], *, once: bool) -> Outcome | None:
        walk = steps(watch, clock, self._teller(watch))
        step: Step = next(walk)
        while not (once and isinstance(step, Pause)):
            try:
                step = walk.send(self._do(step, watch))
            except StopIteration as end:
                return self._named(end.value)
        return None

    def _do(self, step: Step, watch: Watch) -> Any:
        if isinstance(step, Poll):
            return self.poll(watch.kickoff_id, step.timeout)
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        try:
            if isinstance(step, Results):
                return self.hook.client.send(endpoints.ended_tasks(watch.kickoff_id), timeout=step.timeout)
            return self.hook.refresh()
        except CrewError as error:
            return error

    async def await_outcome(self, watch: Watch, *, clock: Callable[[], float] = time.time) -> Outcome:
        """Wait as `wait` does, without blocking the event loop."""
        walk = steps(watch, clock, self._teller(watch))
        step: Step = next(walk)
        while True:
            try:
                step = walk.send(await self._ado(step, watch))
            except StopIteration as end:
                return self._named(end.value)

    async def _ado(self, step: Step, watch: Watch) -> Any:
        if isinstance(step, Poll):
            return await self._apoll(watch.kickoff_id, step.timeout)
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        try:
            if isinstance(step, Results):
                return await self.hook.client.asend(endpoints.ended_tasks(watch.kickoff_id), timeout=step.timeout)
            return await self.hook.arefresh()
        except CrewError as error:
            return error

    async def _apoll(self, kickoff_id: str, timeout: float | None) -> Execution | CrewError:  # noqa: ASYNC109 - passed on
        metrics.polled(self.hook.crew_conn_id, in_triggerer=True)
        reply: Execution | CrewError
        try:
            reply = await self.hook.client.asend(self._status(kickoff_id), timeout=timeout)
        except CrewError as error:
            reply = error
        for source in self.sources:
            reply = _kept_beside(reply, await source.aread(kickoff_id, reply))
        return reply

    def _status(self, kickoff_id: str) -> Call[Execution]:
        """Return the call that polls, made once for a wait."""
        if self._polled is None or self._polled[0] != kickoff_id:
            self._polled = kickoff_id, endpoints.status(kickoff_id)
        return self._polled[1]

    def _named(self, outcome: Outcome) -> Outcome:
        """Name in the message of a wait that gave up what is to be repaired."""
        if outcome.kind != GAVE_UP:
            return outcome
        return replace(outcome, message=f"{self.hook.place}: {outcome.message}")

    async def was_asked(self, kickoff_id: str) -> bool:
        """Whether a question to a person has arrived in one of the sources."""
        for source in self.sources:
            if await source.was_asked(kickoff_id):
                return True
        return False


def _kept_beside(status: Execution | CrewError, found: Execution | CrewError) -> Execution | CrewError:
    """Add to a question what only the status knows: a webhook says neither what was used nor where its page is."""
    if found is status or not (isinstance(status, Execution) and isinstance(found, Execution)):
        return found
    return replace(found, usage=status.usage, view=status.view, has_details=status.has_details)
