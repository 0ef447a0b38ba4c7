"""OpenLineage's own extractor and adapter on our tasks, and the events that they make."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, TaskInstanceState
from faults.dialects import PENDING_SPEC, SPEC
from faults.openlineage import crew_facet_of
from faults.server import FaultServer
from faults.wire import CLOSE, NoReply, Reply
from simulated_airflow import TaskRun

from airflow_crew_provider.api.status import USAGE
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

pytestmark = pytest.mark.usefixtures("simulated_airflow")


pytest.importorskip("airflow.providers.openlineage")

POLL = "GET /status/k-1"
TOPIC = "what no catalogue may show"
START, COMPLETE, FAIL = "start_task", "complete_task", "fail_task"
STATES = {START: "RUNNING", COMPLETE: "SUCCESS", FAIL: "FAILED"}
OF_TASK: dict[str, Any] = {
    "run_id": "0190c2f2-8f1a-7c58-9e1f-7b5f8d9c0a11",
    **dict.fromkeys(("job_description", "nominal_start_time", "nominal_end_time")),
    **{name: [] for name in ("owners", "tags")},
}
EventOf = Callable[[Any, str], str]


@pytest.fixture
def event_of() -> EventOf:
    """Return the event that OpenLineage sends of a task, as it goes over the wire."""
    from airflow.providers.openlineage.extractors.manager import ExtractorManager
    from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
    from openlineage.client import OpenLineageClient
    from openlineage.client.serde import Serde
    from openlineage.client.transport.noop import NoopConfig, NoopTransport

    adapter = OpenLineageAdapter(OpenLineageClient(transport=NoopTransport(NoopConfig())))

    def event_of(task: Any, kind: str) -> str:
        ti = TaskRun(task.task_id).context()["ti"]
        run = SimpleNamespace(run_id="run")
        found = ExtractorManager().extract_metadata(run, task, TaskInstanceState[STATES[kind]], ti)
        time = {"event_time" if kind == START else "end_time": "2026-11-20T12:00:00+00:00"}
        return str(Serde.to_json(getattr(adapter, kind)(**OF_TASK, **time, job_name=f"dag.{task.task_id}", task=found)))

    return event_of


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": ["topic"]})
    server.on("POST /kickoff", {"kickoff_id": "k-1"})


def made(operator: Any) -> Any:
    """Return a task of a DAG, which the extractor asks for its names."""
    operator.dag = DAG("dag")
    return operator


def kickoff(**more: Any) -> Any:
    inputs = {"topic": TOPIC, "audience": TOPIC}
    return made(CrewKickoffOperator(task_id="kickoff", inputs=inputs, deferrable=False, poll_interval=0.05, **more))


def sensor(**more: Any) -> Any:
    return made(CrewStatusSensor(task_id="wait", deferrable=False, poke_interval=0.05, **more))


def execute(task: Any) -> None:
    task.execute(TaskRun(task.task_id).context())


def facet(**known: Any) -> dict[str, Any]:
    return {"connId": "crew_default", "inputNames": [], **known}


OF_KICKOFF = {"inputNames": ["audience", "topic"], "kickoffId": "k-1", "executionId": "k-1"}


def test_before_starting_a_kickoff_reports_input_names_but_no_values(event_of: EventOf) -> None:
    event = event_of(kickoff(), START)
    assert crew_facet_of(event) == facet(inputNames=["audience", "topic"])
    assert TOPIC not in event


def test_a_completed_crew_is_told_with_its_ids_and_tokens(server: FaultServer, event_of: EventOf) -> None:
    server.on(POLL, SPEC.running, {**SPEC.completed, "usage_metrics": {"total_tokens": 1250, "cost_usd": 0.5}})
    task = kickoff(wait_for_completion=True)
    execute(task)
    event = event_of(task, COMPLETE)
    assert crew_facet_of(event) == facet(**OF_KICKOFF, state="completed", totalTokens=1250, costUsd=0.5)
    assert TOPIC not in event
    assert SPEC.completed["result"]["output"] not in event


def test_a_kickoff_that_does_not_wait_leaves_the_crew_running(event_of: EventOf) -> None:
    task = kickoff()
    execute(task)
    assert crew_facet_of(event_of(task, COMPLETE)) == facet(**OF_KICKOFF, state="running")


def test_a_failed_crew_is_told_by_the_failed_task(server: FaultServer, event_of: EventOf) -> None:
    server.on("GET /status/k-2", Reply(body=SPEC.failed, headers={USAGE: '{"total_tokens": 900, "cost_usd": 0.25}'}))
    task = sensor(kickoff_id="k-2", execution_id="k-1")
    with pytest.raises(AirflowException):
        execute(task)
    ended = facet(kickoffId="k-2", executionId="k-1", state="error", totalTokens=900, costUsd=0.25)
    assert crew_facet_of(event_of(task, FAIL)) == ended


def test_a_lost_answer_leaves_an_unknown_state(server: FaultServer, event_of: EventOf) -> None:
    server.on("POST /kickoff", NoReply(CLOSE))
    task = kickoff()
    with pytest.raises(AirflowException):
        execute(task)
    assert crew_facet_of(event_of(task, FAIL)) == facet(inputNames=["audience", "topic"], state="unknown")


def test_a_draft_is_told_as_pending(server: FaultServer, event_of: EventOf) -> None:
    server.on(POLL, PENDING_SPEC)
    task = sensor(kickoff_id="k-1")
    execute(task)
    event = event_of(task, COMPLETE)
    assert crew_facet_of(event) == facet(kickoffId="k-1", executionId="k-1", state="pending")
    assert PENDING_SPEC["task_output"] not in event


def test_a_resume_is_told_without_the_feedback(server: FaultServer, event_of: EventOf) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on("POST /resume", SPEC.resumed)
    answer = {"execution_id": "k-1", "crew_task_id": "draft_task", "human_feedback": TOPIC, "is_approve": False}
    task = made(CrewResumeOperator(task_id="resume", **answer))
    execute(task)
    event = event_of(task, COMPLETE)
    assert crew_facet_of(event) == facet(kickoffId="k-1", executionId="k-1", state="running")
    assert TOPIC not in event
