"""Both tasks that wait for a crew without inputs, as their tests make them."""

from __future__ import annotations

from typing import Any

import pytest
from faults.dialects import SPEC

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

POLL = "GET /status/k-1"
in_both_places = pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])


def completed(output: str) -> dict[str, Any]:
    return {**SPEC.completed, "result": {"output": output, "tasks": []}}


def kickoff_that_waits(**more: Any) -> CrewKickoffOperator:
    options = {"inputs": {}, "poll_interval": 0.05, "wait_for_completion": True}
    return CrewKickoffOperator(task_id="kickoff", **{**options, **more})


def sensor_that_waits(**more: Any) -> CrewStatusSensor:
    options = {"kickoff_id": "k-1", "poke_interval": 0.05, "timeout": 20}
    return CrewStatusSensor(task_id="wait", **{**options, **more})
