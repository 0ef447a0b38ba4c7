"""Replays the results of methods that finished before a crash instead of rerunning the methods."""

from __future__ import annotations

from typing import Any

from crewai.flow.flow import Flow

from crew_service.crewai import internals
from crew_service.engine.crew import CrewFailed, TaskOutput


class Replay:
    def __init__(self, finished: list[TaskOutput], state_id: str) -> None:
        self._state_id = state_id
        points: list[Any] = [(task["task_id"], task.get("point")) for task in finished]
        self._results = [(name, point["result"]) for name, point in points if point]
        self._state = next((point["state"] for _, point in reversed(points) if point), None)

    def begin(self, flow: Flow[Any]) -> None:
        """Restore the state as of the last finished method; call this after the Flow has received its inputs."""
        if self._state is not None:
            internals.restore_state(flow, self._state)
            internals.stamp(flow, self._state_id)  # the stored id may be that of an execution that this one continues
            self._state = None

    def take(self, name: str) -> dict[str, Any] | None:
        """Return the stored result of the method's next call; None if the method must run."""
        place = next((place for place, (method, _) in enumerate(self._results) if method == name), None)
        if place is None:
            return None
        _, result = self._results.pop(place)
        if "lost" in result:
            raise CrewFailed(
                f"The Flow's method {name!r} has finished, but its return value ({result['lost']}) cannot be stored, "
                "so the Flow cannot continue from there. Start the Flow again."
            )
        return dict(result)
