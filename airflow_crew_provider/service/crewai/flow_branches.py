"""Keeps a gate from cancelling parallel branches: each branch of a Flow continues to its own end or gate.

Once no branch runs, the question of the first gate pauses the Flow, in the way that CrewAI pauses one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from crewai.flow.async_feedback import HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.flow import Flow

from airflow_crew_provider.service.crewai import internals

INSIDE: ContextVar[bool] = ContextVar("inside a branch", default=False)
RACING: ContextVar[frozenset[str]] = ContextVar("listeners of which the first one counts", default=frozenset())


class Branches:
    """`waiting`: gates without an answer, oldest first. `answered` is awaited before what follows an answer."""

    def __init__(
        self, flow: Flow[Any], waiting: list[PendingFeedbackContext], answered: Callable[[], Awaitable[None]]
    ) -> None:
        self.waiting = waiting
        self._flow = flow
        self._answered = answered
        self._open = 0  # start methods whose branches run

    def separate(self) -> None:
        for name, wrapped in (
            ("_execute_start_method", self._start),
            ("_execute_single_listener", self._listener),
            ("_execute_racing_listeners", self._race),
            ("_execute_listeners", self._after_an_answer),
        ):
            internals.replace(self._flow, name, wrapped)

    def _pause_if_asked(self) -> None:
        if self.waiting:
            raise HumanFeedbackPending(context=self.waiting[0])

    def _start(self, original: internals.AsyncCall) -> internals.AsyncCall:
        async def start(*args: Any) -> None:
            outermost = not INSIDE.get()
            token = INSIDE.set(True)
            self._open += outermost
            try:
                await original(*args)
            except HumanFeedbackPending as question:
                self.waiting.append(question.context)
            finally:
                INSIDE.reset(token)
                self._open -= outermost
            if outermost and not self._open:
                self._pause_if_asked()

        return start

    def _listener(self, original: internals.AsyncCall) -> internals.AsyncCall:
        async def listen(name: str, *args: Any) -> Any:
            rivals = RACING.get()
            token = RACING.set(frozenset())
            try:
                result = await original(name, *args)
            except HumanFeedbackPending as question:
                self.waiting.append(question.context)
                if name in rivals:
                    raise  # it has not won the race
                return None, None
            finally:
                RACING.reset(token)
            if name in rivals:
                self.waiting = [gate for gate in self.waiting if gate.method_name not in rivals]
            return result

        return listen

    def _race(self, original: internals.AsyncCall) -> internals.AsyncCall:
        async def race(rivals: frozenset[str], *args: Any) -> None:
            token = RACING.set(frozenset(rivals))
            try:
                await original(rivals, *args)
            finally:
                RACING.reset(token)

        return race

    def _after_an_answer(self, original: internals.AsyncCall) -> internals.AsyncCall:
        async def listeners(*args: Any) -> None:
            if INSIDE.get():
                await original(*args)
                return
            token = INSIDE.set(True)
            try:
                await self._answered()
                await original(*args)
            finally:
                INSIDE.reset(token)
            self._pause_if_asked()

        return listeners
