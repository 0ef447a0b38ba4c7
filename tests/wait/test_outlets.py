"""The events of a task's outlets carry the ids, the state and the usage of its execution."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Asset, AssetAlias
from faults.dialects import PENDING_SPEC, SPEC
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import TaskRun

from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.task_groups.crew import CrewResultOperator

pytestmark = [
    pytest.mark.usefixtures("simulated_airflow"),
    pytest.mark.since_airflow("3.0"),
]  # 2.11 keeps them elsewhere

POLL = "GET /status/k-1"
NEWS = Asset("x://news/today", extra={"desk": "culture"})
IDS = {"crew_conn_id": "crew_default", "kickoff_id": "k-1", "execution_id": "k-1"}
USED = {"total_tokens": 1250}
ANSWER = {"execution_id": "k-1", "crew_task_id": "draft_task", "human_feedback": "", "is_approve": True}


def event_of(task: Any, **before: Any) -> Any:
    """Execute a task as a worker does, and return the extra of its outlet's event."""
    from airflow.sdk.execution_time.context import OutletEventAccessors

    context = {**TaskRun(task.task_id).context(), "outlet_events": OutletEventAccessors()}
    context["outlet_events"][NEWS].extra.update(before)
    task.execute(context)
    return context["outlet_events"][NEWS].extra


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"})


def kickoff(**more: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(
        task_id="kickoff", inputs={}, poll_interval=0.05, deferrable=False, outlets=[NEWS], **more
    )


def test_a_completed_crew_says_what_it_used(server: FaultServer) -> None:
    server.on(POLL, SPEC.running, {**SPEC.completed, "usage_metrics": USED})
    assert event_of(kickoff(wait_for_completion=True)) == {**IDS, "state": "completed", "usage": USED}


def test_a_kickoff_that_does_not_wait_reports_a_running_crew(server: FaultServer) -> None:
    assert event_of(kickoff()) == {**IDS, "state": "running", "usage": None}


def test_the_paths_of_copied_files_are_named(server: FaultServer, tmp_path: Path) -> None:
    file = {"name": "a.md", "version": 1, "size": 4, "sha256": hashlib.sha256(b"text").hexdigest(), "state": "final"}
    server.on(POLL, SPEC.completed).on("GET /executions/k-1/files", {"files": [file]})
    server.on("GET /executions/k-1/files/a.md?version=1", Reply(body=b"text"))
    event = event_of(kickoff(wait_for_completion=True, files_to=str(tmp_path)))
    assert event == {**IDS, "state": "completed", "usage": None, "files": [f"{tmp_path}/a.md"]}


def test_a_crew_that_wrote_no_file_names_none(server: FaultServer, tmp_path: Path) -> None:
    """As `example_dags/crew_files.py` reads it."""
    server.on(POLL, SPEC.completed).on("GET /executions/k-1/files", {"files": []})
    event = event_of(kickoff(wait_for_completion=True, files_to=str(tmp_path)))
    assert event["files"] == []
    record = {"state": "completed", "kickoff_id": "k-1", "execution_id": "k-1", "files": []}
    result = CrewResultOperator(task_id="result", records=[record], execution_id="k-1", outlets=[NEWS])
    assert event_of(result)["files"] == []
    del record["files"]
    assert "files" not in event_of(result), "nor has the record of a deployment that lists no files"


def test_a_draft_is_no_output(server: FaultServer) -> None:
    server.on(POLL, PENDING_SPEC)
    sensor = CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0.05, deferrable=False, outlets=[NEWS])
    assert event_of(sensor) == {**IDS, "state": "pending", "usage": None}


def test_after_a_resume_the_execution_is_the_first_one(server: FaultServer) -> None:
    server.on("GET /status/k-2", SPEC.completed)
    ids = {"kickoff_id": "k-2", "execution_id": "k-1"}
    sensor = CrewStatusSensor(task_id="wait", **ids, poke_interval=0.05, deferrable=False, outlets=[NEWS])
    assert event_of(sensor) == {**IDS, **ids, "state": "completed", "usage": None}


def test_a_resume_says_which_execution_goes_on(server: FaultServer) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on("POST /resume", SPEC.resumed)
    assert event_of(CrewResumeOperator(task_id="resume", outlets=[NEWS], **ANSWER))["state"] == "running"


def test_what_the_dag_has_added_to_the_event_stays(server: FaultServer) -> None:
    assert event_of(kickoff(), issue=7)["issue"] == 7


def test_an_alias_is_left_to_the_dag(server: FaultServer) -> None:
    task = CrewKickoffOperator(task_id="kickoff", inputs={}, outlets=[AssetAlias("news"), NEWS])
    assert event_of(task)["kickoff_id"] == "k-1"
