"""Event streaming: an execution's events, named as in CrewAI, for one receiver."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

from crew_service.storage import states

Event = dict[str, Any]


def of_write(
    step: states.Move, news: tuple[str, dict[str, Any]] | None, values: dict[str, Any], *, now: float
) -> list[Event]:
    """Return the events for one write by a segment."""
    kind, body = news or ("", {})
    if step is states.FAIL:
        return [_event("crew_kickoff_failed", {"error": values["error"]}, now)]
    if kind == "step":
        return [_event("tool_usage_finished" if body.get("tool") else "agent_execution_completed", body, now)]
    if kind in NAMES:
        return [_event(NAMES[kind], body, now)]
    if values.get("current_task") is not None:
        return [_event("task_started", {"task": values["current_task"], "agent": values.get("current_agent")}, now)]
    return []


NAMES = {
    "task": "task_completed",
    "crew": "crew_kickoff_completed",
    "human_input": "human_feedback_requested",
}


def started(inputs: dict[str, Any], *, now: float) -> Event:
    return _event("crew_kickoff_started", {"inputs": inputs}, now)


def failed(error: str, *, now: float) -> Event:
    return _event("crew_kickoff_failed", {"error": error}, now)


def _event(kind: str, data: dict[str, Any], now: float) -> Event:
    moment = datetime.fromtimestamp(now, timezone.utc).isoformat()
    return {"id": str(uuid4()), "timestamp": moment, "type": kind, "data": data}


def body(execution_id: str, events: list[Event]) -> dict[str, Any]:
    return {"events": [{"execution_id": execution_id, **event} for event in events]}


class Stream:
    """A segment's events for their receiver; without `realtime`, they are held until a task or the segment ends."""

    def __init__(self, hook: dict[str, Any] | None) -> None:
        self.hook = hook
        self._wanted = frozenset((hook or {}).get("events") or ())
        self._realtime = (hook or {}).get("realtime", True)
        self._held: list[Event] = []

    def due(self, events: list[Event], *, is_pause: bool) -> list[Event]:
        """Return what to send with this write. Nothing changes before `sent`, because a write may be retried."""
        wanted = [event for event in events if not self._wanted or event["type"] in self._wanted]
        return [*self._held, *wanted] if self._realtime or is_pause else []

    def sent(self, events: list[Event], *, is_pause: bool) -> None:
        if self._realtime or is_pause:
            self._held = []
        else:
            self._held += [event for event in events if not self._wanted or event["type"] in self._wanted]
