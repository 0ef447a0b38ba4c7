"""Suppresses events from steps whose answers are in the journal: listeners received the events when the steps ran.

CrewAI announces a tool call, a memory lookup or an agent's plan before it is known whether that step will run. If the
step may have been announced before, the event is held back until the step runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from crewai.events.types.logging_events import AgentLogsExecutionEvent
from crewai.events.types.memory_events import (
    MemoryRetrievalCompletedEvent,
    MemoryRetrievalFailedEvent,
    MemoryRetrievalStartedEvent,
)
from crewai.events.types.reasoning_events import (
    AgentReasoningCompletedEvent,
    AgentReasoningFailedEvent,
    AgentReasoningStartedEvent,
)
from crewai.events.types.tool_usage_events import (
    ToolUsageErrorEvent,
    ToolUsageEvent,
    ToolUsageFinishedEvent,
    ToolUsageStartedEvent,
)
from crewai.utilities.string_utils import sanitize_tool_name

Emit = Callable[[Any, Any], Any]
RECALL, PLAN = "recall", "a plan"  # no tool can have the latter name
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


def filtered(emit: Emit, answers: Callable[[], Answers]) -> Emit:
    """Return an `emit` that suppresses or holds back these events and passes on all others."""

    def emitted(source: Any, event: Any) -> Any:
        if isinstance(event, AgentLogsExecutionEvent) and answers().is_replaying():
            return None
        name, held = _step_of(event), HELD.get()
        if name is None:
            return emit(source, event)
        if isinstance(event, STARTS):
            may_be_answered = answers().has_model_answer() if name == PLAN else answers().has_answer(name)
            if not (may_be_answered or answers().is_replaying()):
                return emit(source, event)
            HELD.set(Held(lambda: emit(source, event), name, held))
            return None
        if held is None or held.name != name:
            return emit(source, event)
        if isinstance(event, (*ENDS_OF_TOOLS, *ENDS_OF_RECALLS, *ENDS_OF_PLANS)):
            HELD.set(held.outer)
        if held.is_answered:
            return None
        if not held.is_emitted and answers().is_replaying():
            return None  # it did not run last time either, for example because its usage limit was reached
        held.let_go()
        return emit(source, event)

    return emitted


def _step_of(event: Any) -> str | None:
    if isinstance(event, ToolUsageEvent):
        return sanitize_tool_name(event.tool_name)
    if isinstance(event, (MemoryRetrievalStartedEvent, *ENDS_OF_RECALLS)):
        return RECALL
    return PLAN if isinstance(event, (AgentReasoningStartedEvent, *ENDS_OF_PLANS)) else None
