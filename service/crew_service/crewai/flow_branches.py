"""Keeps a gate from cancelling parallel branches: each branch of a Flow continues to its own end or gate.

Once no branch is running, the first gate's question pauses the Flow as it would in CrewAI itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from crewai.flow import HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.flow import Flow

from crew_service.crewai.internals import flow_methods
from crew_service.crewai.internals.wrapping import holding

VALUES = frozenset(("method_output", "metadata"))  # fields of a question with any values
INSIDE: ContextVar[bool] = ContextVar("inside a branch", default=False)
RACING: ContextVar[frozenset[str]] = ContextVar("the racing listeners; only the first one wins", default=frozenset())


@dataclass(frozen=True)
class Question:
    """A waiting gate.

    :param fired: the listeners that had fired when it asked
    :param starts: whether it ran as a start method instead of a listener

    Both are None in questions from releases that did not store them.
    """

    context: PendingFeedbackContext
    fired: list[str] | None = None
    starts: bool | None = None

    @classmethod
    def of(cls, stored: dict[str, Any], decoded: Callable[[str], Any]) -> Question:
        context = PendingFeedbackContext.from_dict(stored)
        for name in VALUES & stored.get("kept", {}).keys():
            setattr(context, name, decoded(stored["kept"][name]))
        return cls(context, stored.get("fired"), stored.get("starts"))

    def to_dict(self, keep: Callable[[Any, str], str]) -> dict[str, Any]:
        """Return the question as plain JSON.

        :param keep: encodes what the method returned or declared, given with the method's name
        """
        values = {name: getattr(self.context, name) for name in VALUES}
        fields = replace(self.context, method_output=None, metadata={}).to_dict()
        stored = {name: keep(value, self.context.method_name) for name, value in values.items()}
        return {**fields, "kept": stored, "fired": self.fired, "starts": self.starts}


class Branches:
    """The branches of a Flow.

    :param waiting: unanswered questions, oldest first
    :param answered: awaited before any method that follows an answer
    """

    def __init__(
        self,
        flow: Flow[Any],
        question: Question | None,
        waiting: list[Question],
        answered: Callable[[], Awaitable[None]],
    ) -> None:
        self._asked = question
        self.waiting = waiting
        self._flow = flow
        self._answered = answered
        self._open = 0  # start methods with running branches

    def separate(self) -> None:
        for name, wrapped in (
            ("_execute_start_method", self._start),
            ("_execute_single_listener", self._listener),
            ("_execute_racing_listeners", self._race),
            ("_execute_listeners", self._after_an_answer),
        ):
            flow_methods.replace(self._flow, name, wrapped)

    def _pause_if_asked(self) -> None:
        if self.waiting:
            raise HumanFeedbackPending(context=self.waiting[0].context)

    def _wait(self, question: HumanFeedbackPending, *, starts: bool = False) -> None:
        self.waiting.append(Question(question.context, sorted(flow_methods.fired(self._flow)), starts))

    def _start(self, original: flow_methods.AsyncCall) -> flow_methods.AsyncCall:
        async def start(*args: Any, **kwargs: Any) -> None:
            outermost = not INSIDE.get()
            token = INSIDE.set(True)
            self._open += outermost
            try:
                await original(*args, **kwargs)
            except HumanFeedbackPending as question:
                self._wait(question, starts=True)
            finally:
                INSIDE.reset(token)
                self._open -= outermost
            if outermost and not self._open:
                self._pause_if_asked()

        return start

    def _listener(self, original: flow_methods.AsyncCall) -> flow_methods.AsyncCall:
        async def listen(name: str, *args: Any, **kwargs: Any) -> Any:
            rivals = RACING.get()
            token = RACING.set(frozenset())
            try:
                result = await original(name, *args, **kwargs)
            except HumanFeedbackPending as question:
                self._wait(question)
                if name in rivals:
                    raise  # it did not win the race
                return None, None
            finally:
                RACING.reset(token)
            if name in rivals:
                self.waiting = [each for each in self.waiting if each.context.method_name not in rivals]
            return result

        return listen

    def _race(self, original: flow_methods.AsyncCall) -> flow_methods.AsyncCall:
        async def race(rivals: frozenset[str], *args: Any, **kwargs: Any) -> None:
            with holding(RACING, frozenset(rivals)):
                await original(rivals, *args, **kwargs)

        return race

    def _after_an_answer(self, original: flow_methods.AsyncCall) -> flow_methods.AsyncCall:
        async def listeners(event: str, result: Any, *rest: Any, **kwargs: Any) -> None:
            if INSIDE.get():
                await original(event, result, *rest, **kwargs)
                return
            with holding(INSIDE, True):
                await self._answered()
                await self._follow(partial(original, **kwargs), event, result)
            self._pause_if_asked()

        return listeners

    async def _follow(self, listeners: flow_methods.AsyncCall, event: str, result: Any) -> None:
        """Do what CrewAI does after an answer in the same process, and also loop back, as it does only on a resume."""
        assert self._asked
        gate = self._asked.context.method_name
        flow_methods.rearm_way_back(self._flow, event, gate)
        if event == gate:
            await listeners(event, result)
            return
        fired = flow_methods.fired(self._flow)
        earlier = fired if self._asked.fired is None else fired & set(self._asked.fired)
        starts = flow_methods.started(self._flow, gate) if self._asked.starts is None else self._asked.starts
        if starts:
            flow_methods.rearm(self._flow, event, earlier)
        await listeners(gate, event)
        if not starts:
            flow_methods.rearm(self._flow, event, earlier | flow_methods.fired(self._flow) - fired)
        await listeners(event, result)
        await flow_methods.start_again(self._flow, event)
