"""A revision by the schema against the real crew service: sent once, and the completed output is compared again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

local = pytest.importorskip("crew_service.local", reason="needs the crew service")
pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.since_airflow("3.1")]

SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}}
GATE = {"agent": "Writer", "seconds": 0.05, "human_input": True}
SCENARIO = {
    "inputs": [],
    "tasks": [
        {**GATE, "id": "plan", "output": '{"total": "a plan"}'},
        {**GATE, "id": "write", "output": '{"total": "one"}', "revised": '{"total": {revision}}'},
    ],
}


def waited(kickoff_id: str) -> Any:
    return run(CrewStatusSensor(task_id="wait", kickoff_id=kickoff_id, poke_interval=0.05, output_schema=SCHEMA))


def reviewed(pending: Any) -> Any:
    from airflow_crew_provider.operators.review import CrewReviewOperator

    options = {"output_schema": SCHEMA, "on_schema_mismatch": "revise", "max_rounds": 3, "round_number": 1}
    return run(CrewReviewOperator(task_id="review", pending=pending, **options))


def test_the_last_tasks_draft_is_revised_once_despite_a_clear(connect: Connect, tmp_path: Path) -> None:
    with local.running_service(scenario=SCENARIO, db=tmp_path / "service.db") as service:
        connect(service.url, token=service.token)
        execution = run(CrewKickoffOperator(task_id="kickoff", inputs={}))
        plan = waited(execution)
        assert (plan["completed_tasks"], plan["total_tasks"]) == (0, 2), "others follow, so it is not compared"
        four_fields = {"execution_id": execution, "crew_task_id": "plan", "human_feedback": "", "is_approve": True}
        run(CrewResumeOperator(task_id="approve", **four_fields))

        review = reviewed(waited(execution))
        resume, task_run = CrewResumeOperator(task_id="resume", review=review), TaskRun("resume")
        run(resume, task_run)
        second = waited(execution)
        assert second["output"] == {"total": 2}
        run(resume, task_run.clear())
        assert waited(execution)["output"] == {"total": 2}, "a second revision would have made a third draft"
