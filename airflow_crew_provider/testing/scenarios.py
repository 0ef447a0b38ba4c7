"""Scenarios for tests: written by hand, or recorded from a real execution and replayed offline."""

from __future__ import annotations

import json
from typing import Any

from airflow_crew_provider.models import Json


def scenario(*outputs: str, inputs: tuple[str, ...] = ("topic",), review_last: bool = False, **last: Any) -> Json:
    """Return a scenario of tasks that take no time and give these outputs, the last one the crew's.

    :param outputs: the tasks' outputs; ``{name}`` is filled with the input of that name
    :param inputs: the names that the crew asks for
    :param review_last: whether the last task waits for a person
    :param last: further fields of the last task, e.g. ``error="out of credit"`` or ``revised="After {feedback}"``
    """
    tasks: list[Json] = [
        {"id": f"task_{n}", "agent": f"Agent {n}", "output": text} for n, text in enumerate(outputs, 1)
    ]
    tasks[-1] |= {"human_input": review_last, **last}
    return {"inputs": list(inputs), "tasks": tasks}


def recorded(record: Json, inputs: tuple[str, ...] = ()) -> Json:
    """Return a scenario that replays a completed record: the same tasks, agents and output, at once.

    :param record: what a kickoff with ``wait_for_completion``, or a sensor, has returned
    :param inputs: the names that the crew asks for
    """
    if record.get("state") != "completed":
        raise ValueError(f"Only a completed record can be replayed; this one is {record.get('state')!r}")
    tasks = [
        {"id": each["task_id"] or f"task_{n}", "agent": each["agent"] or "Agent", "output": _literal(each["output"])}
        for n, each in enumerate(record["tasks"], 1)
    ]
    output = _literal(record["output"])
    if not tasks or tasks[-1]["output"] != output:
        tasks.append({"id": "result", "agent": "Agent", "output": output})
    return {"inputs": list(inputs), "tasks": tasks}


def _literal(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
