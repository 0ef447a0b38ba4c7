"""Replays the results of methods that finished before a crash instead of rerunning the methods."""

from __future__ import annotations

from typing import Any

from crewai.flow.flow import Flow

from crew_service.crewai import flow_values
from crew_service.crewai.flow_state import FlowState
from crew_service.crewai.internals import flow_methods
from crew_service.engine.crew import CrewFailed, TaskOutput

CHANGED = "The Flow has changed: the stored return value of its method {!r} cannot be restored ({}). Start it again."


class Replay:
    """The results of the methods that have finished since the Flow began or a person answered.

    :raises CrewFailed: if not all of them, and the state, can be restored
    """

    def __init__(self, finished: list[TaskOutput], state_id: str, state: FlowState) -> None:
        self._state_id, self._kept = state_id, state
        points: list[Any] = [(task["task_id"], task.get("point")) for task in finished]
        self._results = [
            (name, _restored(name, point["result"])) for name, point in points if point and "result" in point
        ]
        # Release 0.2.0 stored the state with each result.
        self._state = next((point["state"] for _, point in reversed(points) if point and "state" in point), None)
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
        flow_methods.stamp(flow, self._state_id)  # the stored id may be that of an execution that this one continues

    def take(self, name: str) -> list[Any]:
        """Return the stored result of the method's next call, in a list; an empty list if the method must run."""
        place = next((place for place, (method, _) in enumerate(self._results) if method == name), None)
        return [] if place is None else [self._results.pop(place)[1]]


def _restored(name: str, result: flow_values.Stored) -> Any:
    if "lost" in result:
        raise CrewFailed(
            f"The Flow's method {name!r} has finished, but its return value ({result['lost']}) cannot be stored, "
            f"so the Flow cannot continue from there{_because(result)}. Start the Flow again."
        )
    try:
        return flow_values.restored(result)
    except Exception as error:  # raised by a user's class
        raise CrewFailed(CHANGED.format(name, error)) from None


def _because(result: flow_values.Stored) -> str:
    return f": {result['problem']}" if "problem" in result else ""
