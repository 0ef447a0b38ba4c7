"""What a finished task passes to later processes of its crew: the `point` of its stored output.

Beside the names here, a point has the fields of CrewAI's `TaskOutput` that its JSON does not restore.
"""

from __future__ import annotations

from typing import Any

from crew_service.engine.crew import TaskOutput

RESULT, ANSWER = RETURNED = ("result", "answer")  # what a Flow's method returned, and what a person said to it
ANSWERED = "answered"  # a person's answer to the question before
LOST = "lost"  # why a field of a task's output, or a method's result, cannot be stored
TOOL_RESULTS = "tool_results"  # in the caches of tools
PREPARED = "prepared"  # calls of tools with the rule `prepare`


def of(output: TaskOutput) -> dict[str, Any]:
    return output.get("point") or {}


def with_more(output: TaskOutput, name: str, value: Any) -> TaskOutput:
    """Return the output with a value for later processes, unless it is empty."""
    return {**output, "point": {**of(output), name: value}} if value else output


def lost(output: TaskOutput) -> str | None:
    """Return what of an output cannot be passed to another process, as the end of a sentence; None if all of it can."""
    point = of(output)
    if problem := point.get(LOST):
        return f"of the output of the task {output['task_id']!r}, {problem}"
    if kind := next((point[part][LOST] for part in RETURNED if LOST in point.get(part, {})), None):
        return f"the return value ({kind}) of its finished method {output['task_id']!r} cannot be stored"
    return None
