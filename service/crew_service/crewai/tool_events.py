"""Emits no event of a tool whose answer comes from the journal: whoever listens had them when it ran.

CrewAI says that a tool starts before anybody knows whether it is run. As long as it may have been said before, the
event is held until the tool runs, and is emitted then.
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
        """Whether the journal has one of that tool, for the task that runs."""

    def is_replaying(self) -> bool:
        """Whether the newest call of the task that runs was answered from the journal."""


class Held:
    """The start of a tool; `outer` is that of a tool around it."""

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
    """Note that a tool runs; CrewAI has just said so."""
    if (held := HELD.get()) and held.name == tool:
        held.let_go()


def is_answered(tool: str) -> None:
    """Note that a tool has its answer from the journal."""
    if (held := HELD.get()) and held.name == tool:
        held.is_answered = True


def filtered(emit: Emit, answers: Callable[[], Answers]) -> Emit:
    """Return what emits all other events."""

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
            return None  # it was not run that time either: it has reached its limit, for example
        held.let_go()
        return emit(source, event)

    return emitted
