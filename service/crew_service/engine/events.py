"""Event streaming: an execution's events, named as in CrewAI, for one receiver."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from crew_service.storage import states
from crew_service.times import iso

MOST_HELD = 64 * 1024  # characters; each write stores them again

Event = dict[str, Any]


def of_write(
    step: states.Move, news: Sequence[tuple[str, dict[str, Any]]], values: dict[str, Any], *, now: float
) -> list[Event]:
    """Return the events for one write by a segment."""
    if step is states.FAIL:
        return [failed(values["error"], now=now)]
    return [_event(_name(kind, body), body, now) for kind, body in news]


def _name(kind: str, body: dict[str, Any]) -> str:
    if kind == "step":
        return "tool_usage_finished" if body.get("tool") else "agent_execution_completed"
    return NAMES[kind]


NAMES = {
    "task_started": "task_started",
    "task": "task_completed",
    "crew": "crew_kickoff_completed",
    "human_input": "human_feedback_requested",
}


def started(inputs: dict[str, Any], *, now: float) -> Event:
    return _event("crew_kickoff_started", {"inputs": inputs}, now)


def failed(error: str, *, now: float) -> Event:
    return _event("crew_kickoff_failed", {"error": error}, now)


def _event(kind: str, data: dict[str, Any], now: float) -> Event:
    return {"id": str(uuid4()), "timestamp": iso(now), "type": kind, "data": data}


def body(execution_id: str, events: list[Event]) -> dict[str, Any]:
    return {"events": [{"execution_id": execution_id, **event} for event in events]}


class Stream:
    """An execution's events for their receiver; without `realtime`, they are held until a task or the segment ends.

    Those that are held are stored with the receiver, in the write that tells of them.
    """

    def __init__(self, hook: dict[str, Any] | None) -> None:
        self.hook = hook
        self._wanted = frozenset((hook or {}).get("events") or ())
        self._realtime = (hook or {}).get("realtime", True)
        self.held: list[Event] = (hook or {}).get("held", [])

    def parted(self, events: list[Event], *, is_pause: bool) -> tuple[list[Event], list[Event]]:
        """Return what to send with this write, and what to hold from then on."""
        known = [*self.held, *(event for event in events if not self._wanted or event["type"] in self._wanted)]
        is_due = self._realtime or is_pause or len(json.dumps(known)) > MOST_HELD
        return (known, []) if is_due else ([], known)
