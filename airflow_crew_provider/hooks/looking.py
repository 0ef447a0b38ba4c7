"""How a hook looks and waits: the same steps, blocking in a worker and awaiting in a triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_crew_provider import api
from airflow_crew_provider.client import Client
from airflow_crew_provider.exceptions import CrewError, CrewNotFound
from airflow_crew_provider.models import Execution
from airflow_crew_provider.waiting import GAVE_UP, Look, Outcome, Pause, Step, Watch, steps


class Looking:
    """A mixin of the hook, which has the client and can look its connection up once more."""

    crew_conn_id: str
    log: Any

    @property
    def client(self) -> Client:
        """The client of the connection."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Look the connection up once more; return whether it has changed."""
        raise NotImplementedError

    async def arefresh(self) -> bool:
        """Do what `refresh` does, without blocking the event loop."""
        raise NotImplementedError

    def look(self, kickoff_id: str, timeout: float | None = None) -> Execution | CrewError:
        """Look at an execution; what goes wrong is returned, for a `Watch` to judge."""
        try:
            return self.client.send(api.status(kickoff_id), timeout=timeout)
        except CrewError as error:
            return error

    def look_patiently(self, kickoff_id: str) -> Execution | None:
        """Look until there is an answer, forgiving what a wait forgives; None if the service does not know the id."""
        watch = Watch(kickoff_id=kickoff_id, started=time.time(), poll_interval=1.0)
        while True:
            reply = self.look(kickoff_id)
            if isinstance(reply, Execution):
                return reply
            if isinstance(reply, CrewNotFound):
                return None
            if watch.failed(reply, now=time.time()) is not None:
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

    def look_once(self, watch: Watch) -> Outcome | None:
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
        if isinstance(step, Look):
            return self.look(watch.kickoff_id, step.timeout)
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        return self.refresh()

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
        if isinstance(step, Look):
            return await self._alook(watch.kickoff_id, step.timeout)
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await self.arefresh()

    async def _alook(self, kickoff_id: str, timeout: float | None) -> Execution | CrewError:  # noqa: ASYNC109 - passed on
        try:
            return await self.client.asend(api.status(kickoff_id), timeout=timeout)
        except CrewError as error:
            return error

    def _named(self, outcome: Outcome) -> Outcome:
        """Name the connection where looking has failed; it is what there is to mend."""
        if outcome.kind != GAVE_UP:
            return outcome
        return replace(outcome, message=f"Connection {self.crew_conn_id!r}: {outcome.message}")
