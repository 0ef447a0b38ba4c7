"""Suppresses events of a tool whose answer comes from the journal: listeners received them when it ran.

CrewAI announces a tool call before anyone knows whether the tool will run. If it may have been announced before, the
event is held back until the tool runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from crewai.events.types.tool_usage_events import (
    ToolUsageErrorEvent,
    ToolUsageEvent,
    ToolUsageFinishedEvent,
    ToolUsageStartedEvent,
)
from crewai.utilities.string_utils import sanitize_tool_name

Emit = Callable[[Any, Any], Any]
ENDS = (ToolUsageFinishedEvent, ToolUsageErrorEvent)


class Answers(Protocol):
    def has_answer(self, tool: str) -> bool:
        """Whether the journal has an answer from that tool for the running task."""

    def is_replaying(self) -> bool:
        """Whether the newest call of the running task was answered from the journal."""


class Held:
    """The start of a tool; `outer` is the start of the enclosing tool."""

    def __init__(self, emit: Callable[[], Any], name: str, outer: Held | None) -> None:
        self.name, self.outer = name, outer
        self.is_answered = self.is_emitted = False
        self._emit = emit

    def let_go(self) -> None:
        if not self.is_emitted:
            self.is_emitted = True
            self._emit()


HELD: ContextVar[Held | None] = ContextVar("the newest start of a tool that was held", default=None)


def runs(tool: str) -> None:
    """Note that a tool runs; CrewAI has just announced it."""
    if (held := HELD.get()) and held.name == tool:
        held.let_go()


def is_answered(tool: str) -> None:
    """Note that a tool was answered from the journal."""
    if (held := HELD.get()) and held.name == tool:
        held.is_answered = True


def filtered(emit: Emit, answers: Callable[[], Answers]) -> Emit:
    """Return a function that emits all other events."""

    def emitted(source: Any, event: Any) -> Any:
        if not isinstance(event, ToolUsageEvent):
            return emit(source, event)
        name, held = sanitize_tool_name(event.tool_name), HELD.get()
        if isinstance(event, ToolUsageStartedEvent):
            if not (answers().is_replaying() or answers().has_answer(name)):
                return emit(source, event)
            HELD.set(Held(lambda: emit(source, event), name, held))
            return None
        if held is None or held.name != name:
            return emit(source, event)
        if isinstance(event, ENDS):
            HELD.set(held.outer)
        if held.is_answered:
            return None
        if not held.is_emitted and answers().is_replaying():
            return None  # it did not run that time either: it reached its limit, for example
        held.let_go()
        return emit(source, event)

    return emitted
