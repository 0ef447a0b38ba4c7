"""`output_to`: a large output goes to a file or an object, and its path into XCom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.dialects import PENDING_SPEC, SPEC
from faults.server import FaultServer
from simulated_airflow import TaskRun, run

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")
POLL = "GET /status/k-1"


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": []})
    server.on("POST /kickoff", {"kickoff_id": "k-1"})
    server.on(POLL, SPEC.running, SPEC.completed)


def kickoff(output_to: Any, **more: Any) -> CrewKickoffOperator:
    options = {"inputs": {}, "poll_interval": 0.05, "wait_for_completion": True, "deferrable": False}
    return CrewKickoffOperator(task_id="kickoff", output_to=str(output_to), **{**options, **more})


def sensor(output_to: Any, **more: Any) -> CrewStatusSensor:
    options = {"kickoff_id": "k-1", "poke_interval": 0.05, "timeout": 20, "deferrable": False}
    return CrewStatusSensor(task_id="wait", output_to=str(output_to), **{**options, **more})


@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
@pytest.mark.parametrize("made", [kickoff, sensor])
def test_the_output_is_written_and_the_record_has_its_path(tmp_path: Path, made: Any, deferrable: bool) -> None:
    path = tmp_path / "runs" / "one.txt"
    record = run(made(f"file://{path}", deferrable=deferrable))
    assert path.read_text() == "the output"
    assert (record["output"], record["output_path"]) == (None, f"file://{path}")
    assert [task["output"] for task in record["tasks"]] == [None]


def test_a_matching_object_is_written_as_json(server: FaultServer, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    server.on(POLL, {**SPEC.completed, "result": {"output": '```json\n["tea, 茶"]\n```', "tasks": []}})
    run(sensor(path, output_schema={"type": "array"}))
    assert json.loads(path.read_text("utf-8")) == ["tea, 茶"]


def test_an_output_that_breaks_the_schema_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    with pytest.raises(CrewTaskFailed):
        run(sensor(path, output_schema={"type": "array"}))
    assert not path.exists()


def test_a_draft_is_not_written(server: FaultServer, tmp_path: Path) -> None:
    server.on(POLL, PENDING_SPEC)
    assert run(sensor(tmp_path / "draft.txt"))["output"] == "the draft"
    assert not (tmp_path / "draft.txt").exists()


def test_a_retry_after_a_failed_write_writes_the_same_execution(server: FaultServer, tmp_path: Path) -> None:
    path, task_run = tmp_path / "one.txt", TaskRun()
    path.mkdir()
    with pytest.raises(AirflowException, match=r"could not be written to .*A retry of this task fetches") as failure:
        run(kickoff(path), task_run)
    assert not isinstance(failure.value, CrewTaskFailed)
    path.rmdir()
    assert run(kickoff(path), task_run.retry())["kickoff_id"] == "k-1"
    assert path.read_text() == "the output"
    assert len(server.sent("POST /kickoff")) == 1


def test_a_nonexistent_storage_fails_the_task_before_the_crew_starts(server: FaultServer) -> None:
    with pytest.raises(AirflowException, match="output_to 'nosuch://bucket/key' cannot be opened"):
        run(kickoff("nosuch://bucket/key"))
    assert server.requests == []


def test_the_path_is_a_template() -> None:
    operator = kickoff("file:///data/{{ run_id }}.json")
    operator.render_template_fields({"run_id": "monday"})
    assert operator.output_to == "file:///data/monday.json"
    assert "output_to" in sensor("file:///data").template_fields
