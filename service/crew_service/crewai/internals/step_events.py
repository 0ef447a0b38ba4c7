"""Suppresses events from steps whose answers are in the journal: listeners received the events when the steps ran.

CrewAI announces a tool call, a memory lookup or an agent's plan before it is known whether that step will run. If the
step may have been announced before, the event is held back until the step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from crewai.events import (
    AgentReasoningCompletedEvent,
    AgentReasoningFailedEvent,
    AgentReasoningStartedEvent,
    MemoryRetrievalCompletedEvent,
    MemoryRetrievalFailedEvent,
    MemoryRetrievalStartedEvent,
    ToolUsageErrorEvent,
    ToolUsageFinishedEvent,
    ToolUsageStartedEvent,
    crewai_event_bus,
)

from crew_service.crewai.internals import Seam
from crew_service.engine.asks import ASK_PERSON

Emit = Callable[..., Any]
EVENTS = Seam(
    "after a restart, listeners receive some events again, and tokens that only events report are not counted",
    {
        "crewai.events:crewai_event_bus.emit": "handlers on the bus run later, in other threads",
        "crewai.events:AgentLogsExecutionEvent": "it is emitted before it is known whether the step will run",
        "crewai.events:ToolUsageEvent": "so are events of tools, of which some versions have more kinds than others",
    },
)
FLUSH = Seam(
    "listeners may receive a task's last events only while a person is being asked",
    {"crewai.events:crewai_event_bus.flush": "handlers on the bus run later, in other threads"},
)
RECALL, REMEMBER, PLAN = "recall", "a memory", "a plan"  # no tool can have the last two names
OF_MEMORY = (RECALL, REMEMBER)
ASKED, RECEIVED = "FlowInputRequestedEvent", "FlowInputReceivedEvent"  # by `Flow.ask`; not exported by CrewAI
STARTS = (ToolUsageStartedEvent, MemoryRetrievalStartedEvent, AgentReasoningStartedEvent)
ENDS_OF_TOOLS = (ToolUsageFinishedEvent, ToolUsageErrorEvent)
ENDS_OF_RECALLS = (MemoryRetrievalCompletedEvent, MemoryRetrievalFailedEvent)
ENDS_OF_PLANS = (AgentReasoningCompletedEvent, AgentReasoningFailedEvent)


class Answers(Protocol):
    def has_answer(self, tool: str) -> bool:
        """Whether the journal has an answer from that tool for the running task."""

    def has_model_answer(self) -> bool:
        """Whether the journal has a model's answer for the running task."""

    def is_replaying(self) -> bool:
        """Whether the newest call of the running task was answered from the journal."""


class Held:
    """A start event that is held back; `outer` is the enclosing step's start event."""

    def __init__(self, emit: Callable[[], Any], name: str, outer: Held | None) -> None:
        self.name, self.outer = name, outer
        self.is_answered = self.is_emitted = False
        self._emit = emit

    def let_go(self) -> None:
        self.is_answered = False
        if not self.is_emitted:
            self.is_emitted = True
            if self.name == PLAN and self.outer and self.outer.name == PLAN:  # each refinement is a plan within a plan
                self.outer.let_go()
            self._emit()


HELD: ContextVar[Held | None] = ContextVar("the newest start event that was held back", default=None)


def runs(step: str) -> None:
    """Note that a step will run; CrewAI has just announced it."""
    if (held := HELD.get()) and held.name == step:
        held.let_go()


def is_answered(step: str) -> None:
    """Note that a step was answered from the journal."""
    if (held := HELD.get()) and held.name == step:
        held.is_answered = not held.is_emitted


def watch_events(watch: Callable[[Any, Any], None]) -> None:
    """Pass every event to `watch` in the thread that emits it."""

    def watched(emit: Emit) -> Emit:
        def emitted(source: Any, event: Any, *args: Any, **kwargs: Any) -> Any:
            watch(source, event)
            return emit(source, event, *args, **kwargs)

        return emitted

    _wrap_emit(watched)


@contextmanager
def dropped(is_dropped: Callable[[Any, Any], bool]) -> Iterator[None]:
    """Suppress the events for which `is_dropped` returns true."""
    before = crewai_event_bus.emit

    def dropping(emit: Emit) -> Emit:
        def emitted(source: Any, event: Any, *args: Any, **kwargs: Any) -> Any:
            return None if is_dropped(source, event) else emit(source, event, *args, **kwargs)

        return emitted

    _wrap_emit(dropping)
    try:
        yield
    finally:
        crewai_event_bus.emit = before  # type: ignore[method-assign]


def filter_events(answers: Callable[[], Answers], model_name: Callable[[str], str]) -> None:
    """From now on, suppress or hold back these events, and pass on all others."""
    _wrap_emit(lambda emit: _filtered(emit, answers, model_name))


def emit(source: Any, event: Any) -> None:
    if not EVENTS.missing:
        crewai_event_bus.emit(source, event)


def flush() -> None:
    """Wait until the handlers of the events so far have returned."""
    if not FLUSH.missing:
        crewai_event_bus.flush()


def _wrap_emit(wrapped: Callable[[Emit], Emit]) -> None:
    if not EVENTS.missing:
        crewai_event_bus.emit = wrapped(crewai_event_bus.emit)  # type: ignore[method-assign]


def _filtered(plain_emit: Emit, answers: Callable[[], Answers], model_name: Callable[[str], str]) -> Emit:
    logs = EVENTS["AgentLogsExecutionEvent"]

    def emitted(source: Any, event: Any, *args: Any, **kwargs: Any) -> Any:
        def emit(source: Any, event: Any) -> Any:
            return plain_emit(source, event, *args, **kwargs)

        if isinstance(event, logs) and answers().is_replaying():
            return None
        name, held = _step_of(event, model_name), HELD.get()
        if name is None:
            return emit(source, event)
        if isinstance(event, STARTS) or type(event).__name__ == ASKED:
            may_be_answered = answers().has_model_answer() if name == PLAN else answers().has_answer(name)
            if not (may_be_answered or answers().is_replaying()):
                return emit(source, event)
            HELD.set(Held(lambda: emit(source, event), name, held))
            return None
        if held is None or held.name != name:
            return emit(source, event)
        is_received = type(event).__name__ == RECEIVED
        if is_received or isinstance(event, (*ENDS_OF_TOOLS, *ENDS_OF_RECALLS, *ENDS_OF_PLANS)):
            HELD.set(held.outer)
        if held.is_answered:
            return None
        if not held.is_emitted and answers().is_replaying():
            return None  # it did not run last time either, for example because its usage limit was reached
        held.let_go()
        return emit(source, event)

    return emitted


def _step_of(event: Any, model_name: Callable[[str], str]) -> str | None:
    if isinstance(event, EVENTS["ToolUsageEvent"]):
        return model_name(event.tool_name)
    if isinstance(event, (MemoryRetrievalStartedEvent, *ENDS_OF_RECALLS)):
        return RECALL
    if type(event).__name__ in (ASKED, RECEIVED):
        return ASK_PERSON
    return PLAN if isinstance(event, (AgentReasoningStartedEvent, *ENDS_OF_PLANS)) else None
