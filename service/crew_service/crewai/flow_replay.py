"""Replays the results of methods that finished before a crash, in the same order, instead of rerunning the methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from crewai.flow.flow import Flow

from crew_service.crewai import flow_values
from crew_service.crewai.errors import Fatal
from crew_service.crewai.flow_state import FlowState
from crew_service.crewai.internals import flow_methods
from crew_service.engine.crew import CrewFailed, TaskOutput

CHANGED = "The Flow has changed: the stored return value of its method {!r} cannot be restored ({}). Start it again."
NOT_REACHED = (
    "The Flow has changed: its method {!r}, which had finished when the process ended, is not run any more. "
    "Start it again."
)
LONGEST_PAUSE = 10  # seconds without a running method; only CrewAI's own code runs then


class Replay:
    """The results of the methods that have finished since the Flow began or a person answered.

    :raises CrewFailed: if not all of them, and the state, can be restored
    """

    def __init__(self, finished: list[TaskOutput], state_id: str, state: FlowState) -> None:
        self._state_id, self._kept = state_id, state
        points: list[Any] = [(task["task_id"], task.get("point")) for task in finished]
        self._results = [
            (name, _restored(name, point["result"])) for name, point in points if point and "result" in point
        ]
        self._order = list(self._results)  # those not replayed yet
        self._running = 0  # calls whose turn it is
        self._changed = asyncio.Event()
        # Release 0.2.0 stored the state with each result.
        self._state = next((point["state"] for _, point in reversed(points) if point and "state" in point), None)
        if self._results and self._state is None and not state.is_kept:
            problem = state.problem or "its state was not kept"
            raise CrewFailed(
                f"The Flow's process ended, and no other can continue it: {problem}. Start the Flow again."
            )

    def begin(self, flow: Flow[Any]) -> None:
        """Restore the state as of the last finished method; call this after the Flow has received its inputs."""
        if self._kept.is_kept:
            self._kept.restore()
        elif self._state is not None:
            flow_methods.restore_state(flow, self._state)
        else:
            return
        self._state = None
        flow_methods.stamp(flow, self._state_id)  # the stored id may be that of an execution that this one continues

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[list[Any]]:
        """Yield the stored result of the method's next call, in a list; an empty list if the method must run.

        Wait for the end of all calls whose results were stored before, since a listener may take the first or the
        last result. They cannot be waiting for this one: each result was stored after its causes. A method that must
        run does not wait: it may have asked a question, after which CrewAI ran other methods.
        """
        stored = next((each for each in self._results if each[0] == name), None)
        if stored:
            self._results.remove(stored)
        try:
            while stored and self._order[0] is not stored:
                await self._next()
            self._running += 1
            try:
                yield [stored[1]] if stored else []
            finally:
                self._running -= 1
        finally:  # also if the call has lost a race meanwhile
            self._order = [each for each in self._order if each is not stored]
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _next(self) -> None:
        """Wait until a call has ended; fail if none will."""
        changed, pause = self._changed, 0
        while pause < LONGEST_PAUSE:  # counted in seconds, in case the whole process pauses
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), 1)
                return
            pause = 0 if self._running else pause + 1
        raise Fatal(NOT_REACHED.format(self._order[0][0]))


def _restored(name: str, result: flow_values.Stored) -> Any:
    if "lost" in result:
        raise CrewFailed(
            f"The Flow's method {name!r} has finished, but its return value ({result['lost']}) cannot be stored, "
            f"so the Flow cannot continue from there{_because(result)}. Start the Flow again."
        )
    try:
        return flow_values.restored(result)
    except Exception as error:  # raised by a user's class
        raise CrewFailed(CHANGED.format(name, error)) from None


def _because(result: flow_values.Stored) -> str:
    return f": {result['problem']}" if "problem" in result else ""
