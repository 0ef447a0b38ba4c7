"""Replays the results of methods that finished before a crash, in the same order, instead of rerunning the methods.

CrewAI does not make such a call again, not even with the stored result: it would repeat what it does around methods,
such as events, hooks, saved states, and questions to a user's own provider. It only gets what it would note of the
call. After an answered question, only CrewAI can go on; each repeated effect of the answer is kept from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from crewai.flow import PendingFeedbackContext
from crewai.flow.flow import Flow
from crewai.flow.human_feedback import HumanFeedbackResult

from crew_service.crewai import codec, flow_values, points
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


@dataclass(frozen=True)
class Ended:
    """What a finished method's call leaves to other processes.

    :param answer: what a person has said to it, unless the result is that answer
    """

    result: Any
    answer: HumanFeedbackResult | None = None

    def stored(self, packages: Container[str], name: str) -> dict[str, flow_values.Stored]:
        point = {points.RESULT: flow_values.stored(self.result, packages, name)}
        if self.answer is not None:
            point[points.ANSWER] = flow_values.stored(self.answer, packages, name)
        return point

    @classmethod
    def restored(cls, name: str, point: dict[str, flow_values.Stored]) -> Ended:
        answer = _restored(name, point[points.ANSWER]) if points.ANSWER in point else None
        return cls(_restored(name, point[points.RESULT]), answer)


class Replay:
    """The results of the methods that have finished since the Flow began or a person answered.

    :param asked: the answered question; its method is the first of the finished ones
    :raises CrewFailed: if not all of them, and the state, can be restored
    """

    def __init__(
        self, finished: list[TaskOutput], state_id: str, state: FlowState, asked: PendingFeedbackContext | None
    ) -> None:
        self._state_id, self._kept = state_id, state
        # What an earlier process made of the answer; None as soon as the methods that follow it run.
        self.answer = _answer_in(finished[0], asked) if finished and asked else None
        known: list[Any] = [(task["task_id"], points.of(task)) for task in finished[1 if asked else 0 :]]
        self._results = [(name, Ended.restored(name, point)) for name, point in known if points.RESULT in point]
        self._order = list(self._results)  # those not replayed yet
        self._running = 0  # calls whose turn it is
        self.has_new_id = False  # so nothing is saved under the state's id
        self._changed = asyncio.Event()
        # Release 0.2.0 stored the state with each result.
        self._state = next((point["state"] for _, point in reversed(known) if "state" in point), None)
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
        self.has_new_id = flow.flow_id != self._state_id  # the stored one is of an execution that this one continues
        flow_methods.stamp(flow, self._state_id)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[list[Ended]]:
        """Yield what is stored of the method's next call, in a list; an empty list if the method must run.

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


def answer_point(answer: HumanFeedbackResult) -> dict[str, str]:
    """Return what is stored of an answer, without what the question has."""
    return {points.ANSWERED: codec.encoded(replace(answer, output=None, metadata={}))}


def _answer_in(record: TaskOutput, asked: PendingFeedbackContext) -> HumanFeedbackResult | None:
    stored = points.of(record).get(points.ANSWERED)
    if stored is None:  # by an earlier release
        return None
    answer: HumanFeedbackResult = codec.decoded(stored)
    return replace(answer, output=asked.method_output, metadata=asked.metadata)


def _restored(name: str, result: flow_values.Stored) -> Any:
    if points.LOST in result:
        raise CrewFailed(
            f"The Flow's method {name!r} has finished, but its return value ({result[points.LOST]}) cannot be stored, "
            f"so the Flow cannot continue from there{_because(result)}. Start the Flow again."
        )
    try:
        return flow_values.restored(result)
    except Exception as error:  # raised by a user's class
        raise CrewFailed(CHANGED.format(name, error)) from None


def _because(result: flow_values.Stored) -> str:
    return f": {result['problem']}" if "problem" in result else ""
