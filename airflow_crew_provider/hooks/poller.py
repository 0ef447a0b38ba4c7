"""How a hook polls and waits: the same steps, blocking in a worker and awaiting in a triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_crew_provider.compat import metrics
from airflow_crew_provider.core import endpoints
from airflow_crew_provider.core.endpoints import Call
from airflow_crew_provider.core.outcome import GAVE_UP, Outcome
from airflow_crew_provider.core.poll_loop import Pause, Poll, Step, steps
from airflow_crew_provider.core.polling import Watch
from airflow_crew_provider.exceptions import CrewError, CrewNotFound, CrewProtocolError
from airflow_crew_provider.models import Execution

if TYPE_CHECKING:
    from airflow_crew_provider.client.client import Client


class Poller:
    """A mixin of the hook, which has the client and can look up its connection again."""

    crew_conn_id: str
    log: Any
    _polled: tuple[str, Call[Execution]] | None = None

    @property
    def client(self) -> Client:
        """The client of the connection."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Look up the connection once more; return whether it has changed."""
        raise NotImplementedError

    async def arefresh(self) -> bool:
        """Do what `refresh` does, without blocking the event loop."""
        raise NotImplementedError

    def poll(self, kickoff_id: str, timeout: float | None = None) -> Execution | CrewError:
        """Poll an execution; an error is returned, for a `Watch` to judge."""
        metrics.polled(self.crew_conn_id, in_triggerer=False)
        try:
            return self.client.send(endpoints.status(kickoff_id), timeout=timeout)
        except CrewError as error:
            return error

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
        walk = steps(watch, clock, self.log.info)
        step: Step = next(walk)
        while True:
            try:
                step = walk.send(self._do(step, watch))
            except StopIteration as end:
                return self._named(end.value)

    def poll_once(self, watch: Watch) -> Outcome | None:
        """Take one step of a wait; None if it goes on."""
        walk = steps(watch, time.time, self.log.info)
        step: Step = next(walk)
        while not isinstance(step, Pause):
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
            return self.refresh()
        except CrewError as error:
            return error

    async def await_outcome(self, watch: Watch, *, clock: Callable[[], float] = time.time) -> Outcome:
        """Wait as `wait` does, without blocking the event loop."""
        walk = steps(watch, clock, self.log.info)
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
            return await self.arefresh()
        except CrewError as error:
            return error

    async def _apoll(self, kickoff_id: str, timeout: float | None) -> Execution | CrewError:  # noqa: ASYNC109 - passed on
        metrics.polled(self.crew_conn_id, in_triggerer=True)
        try:
            return await self.client.asend(self._status(kickoff_id), timeout=timeout)
        except CrewError as error:
            return error

    def _status(self, kickoff_id: str) -> Call[Execution]:
        """Return the call that polls, made once for a wait."""
        if self._polled is None or self._polled[0] != kickoff_id:
            self._polled = kickoff_id, endpoints.status(kickoff_id)
        return self._polled[1]

    def _named(self, outcome: Outcome) -> Outcome:
        """Name the connection in the message of a wait that gave up: that is what to repair."""
        if outcome.kind != GAVE_UP:
            return outcome
        return replace(outcome, message=f"Connection {self.crew_conn_id!r}: {outcome.message}")
