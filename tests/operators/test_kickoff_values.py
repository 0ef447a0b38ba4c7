"""What users and services give a kickoff and a wait: read as meant, or refused before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import Connect, TaskRun, fire, fresh, run

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed, seconds
from airflow_crew_provider.wait.watch import FAILED, LONGEST_MESSAGE, SHORTEST, Outcome

pytestmark = pytest.mark.usefixtures("simulated_airflow")
POST = "POST /kickoff"
POLL = "GET /status/k-1"
LogText = Callable[[], str]


def kickoff(**more: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(**{"task_id": "kickoff", "inputs": {"topic": "AI"}, "deferrable": False, **more})


@pytest.fixture(autouse=True)
def a_crew(server: FaultServer) -> None:
    server.on(POST, {"kickoff_id": "k-1"}).on("GET /inputs", {"inputs": ["topic"]})


# --- types --------------------------------------------------------------------------------------------------


@pytest.mark.row("A19")
@pytest.mark.parametrize("rendered", [["crew_default"], {"id": "crew_default"}, {"crew_default"}, b"crew", 5, None])
@pytest.mark.parametrize(
    "task",
    [
        kickoff(),
        CrewStatusSensor(task_id="wait", kickoff_id="k-1"),
        CrewResumeOperator(
            task_id="resume", execution_id="k-1", crew_task_id="draft", human_feedback="Fine.", is_approve=True
        ),
    ],
    ids=lambda task: task.task_id,
)
def test_a_connection_id_that_is_none_is_refused_for_good(server: FaultServer, task: Any, rendered: Any) -> None:
    task = fresh(task)
    task.crew_conn_id = rendered
    with pytest.raises(CrewTaskFailed, match=r"^crew_conn_id must be a string, not"):
        run(task)
    assert server.requests == []


@pytest.mark.row("A49")
def test_a_resume_without_its_review_says_so(server: FaultServer) -> None:
    """As after a review that failed or was skipped, with the trigger rule ``all_done``."""
    with pytest.raises(CrewTaskFailed, match=r"^review must be a record, not NoneType; nothing was sent"):
        run(CrewResumeOperator(task_id="resume", review=None))
    assert server.requests == []


@pytest.mark.row("A19")
@pytest.mark.parametrize(
    ("value", "read"), [("10", 10.0), (10, 10.0), (" 0.5 ", 0.5), (timedelta(minutes=1), 60.0), (None, None)]
)
def test_a_time_is_read_as_it_is_meant(value: Any, read: float | None) -> None:
    assert seconds(value) == read


@pytest.mark.row("A19")
@pytest.mark.parametrize("value", ["ten", "", "None", True, float("nan"), float("inf"), 10**400, -1, [10], object()])
@pytest.mark.parametrize("name", ["poll_interval", "timeout", "poll_in_worker"])
def test_an_invalid_time_is_refused_by_name_at_dag_parsing(name: str, value: Any) -> None:
    with pytest.raises(CrewInvalidInput, match=f"{name} must be a number of seconds"):
        kickoff(**{name: value})


@pytest.mark.parametrize(
    ("task", "interval"),
    [
        (kickoff(poll_interval=0, wait_for_completion=True, deferrable=True), SHORTEST),
        (kickoff(poll_interval=timedelta(0), wait_for_completion=True, deferrable=True), SHORTEST),
        (CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0, deferrable=True), SHORTEST),
        (kickoff(poll_interval=None, wait_for_completion=True, deferrable=True), 10.0),
        (kickoff(poll_interval=3, wait_for_completion=True, deferrable=True), 3.0),
    ],
)
def test_an_interval_of_zero_is_the_shortest_one(server: FaultServer, task: Any, interval: float) -> None:
    server.on(POLL, {"status": "running"})
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(TaskRun(task.task_id).context())
    assert deferred.value.trigger.poll_interval == interval


@pytest.mark.row("A19")
@pytest.mark.parametrize("deferrable", [False, True])
def test_times_as_text_reach_the_wait(server: FaultServer, deferrable: bool) -> None:
    server.on(POLL, {"status": "running"}, {"status": "completed", "result": {"output": "x"}})
    times = {"poll_interval": "0.05", "timeout": "30"}
    assert run(kickoff(wait_for_completion=True, deferrable=deferrable, **times))["output"] == "x"


@pytest.mark.row("A19")
def test_a_time_spoilt_after_parsing_is_refused_before_any_request(server: FaultServer) -> None:
    operator = kickoff(wait_for_completion=True)
    operator.poll_interval = "soon"
    with pytest.raises(CrewTaskFailed, match="poll_interval"):
        run(operator)
    assert server.requests == []


@pytest.mark.row("A19")
@pytest.mark.parametrize("identifier", ["None", "", " ", None])
def test_a_missing_kickoff_id_is_refused_at_once(server: FaultServer, identifier: Any) -> None:
    with pytest.raises(CrewTaskFailed, match="not a crew service id"):
        run(CrewStatusSensor(task_id="wait", kickoff_id=identifier, deferrable=False))
    assert server.requests == []


@pytest.mark.row("A19")
@pytest.mark.parametrize("deferrable", [False, True])
def test_an_eight_megabyte_error_is_shortened_in_events_and_messages(server: FaultServer, deferrable: bool) -> None:
    server.on(POLL, {"status": "error", "error": "boom " + "x" * 8_000_000})
    event = fire(CrewStatusTrigger("k-1", poll_interval=0.05))
    assert event["kind"] == FAILED
    assert event["message"].startswith("boom x")
    assert len(json.dumps(event)) < LONGEST_MESSAGE + 500
    with pytest.raises(CrewTaskFailed, match=r"boom x+… \(8000005 characters\)") as error:
        run(CrewStatusSensor(task_id="wait", kickoff_id="k-1", deferrable=deferrable))
    assert len(str(error.value)) < LONGEST_MESSAGE + 500


@pytest.mark.row("A19")
def test_a_message_of_the_longest_length_is_kept_whole() -> None:
    assert Outcome(FAILED, "k-1", "x" * LONGEST_MESSAGE).message == "x" * LONGEST_MESSAGE
    assert len(Outcome(FAILED, "k-1", "x" * (LONGEST_MESSAGE + 1)).message) == LONGEST_MESSAGE


# --- the names of inputs ------------------------------------------------------------------------------------


@pytest.mark.row("N26")
@pytest.mark.parametrize("required", [None, ["marketing_brief"]])
def test_header_values_in_input_names_are_masked_only_when_shown(
    server: FaultServer, connect: Connect, log_text: LogText, required: Any
) -> None:
    connect(server.url, headers={"X-Team": "marketing"}, kind="crew")
    server.on("GET /inputs", {"inputs": ["marketing_brief"], "required": required})
    assert run(kickoff(inputs={"marketing_brief": "x"})) == "k-1"
    assert server.sent(POST)[0].json["inputs"] == {"marketing_brief": "x"}
    assert CrewHook().get_inputs() == ["marketing_brief"]
    with pytest.raises(CrewTaskFailed, match=r"Missing inputs: \*\*\*_brief"):
        run(kickoff(inputs={}), TaskRun())
    assert "marketing" not in log_text()


@pytest.mark.row("F1")
def test_a_possibly_optional_input_is_left_to_the_service(server: FaultServer, log_text: LogText) -> None:
    server.on("GET /inputs", {"inputs": ["topic", "tone"]})
    server.on(POST, Reply(status=422, body={"detail": "Missing inputs: tone"}))
    message = r"Missing inputs: tone \(the crew asks for topic, tone; given: topic\)"
    with pytest.raises(CrewTaskFailed, match=f"422.*{message}"):
        run(kickoff())
    assert "The crew also asks for tone" in log_text()


@pytest.mark.row("F1")
@pytest.mark.parametrize("kind", ["flow", None])
def test_a_flow_is_started_without_what_it_does_not_require(
    server: FaultServer, connect: Connect, kind: str | None
) -> None:
    connect(server.url, kind=kind)
    server.on("GET /inputs", {"inputs": ["topic", "tone"], "required": ["topic"] if kind is None else None})
    assert run(kickoff()) == "k-1"


@pytest.mark.row("A56")
@pytest.mark.parametrize(
    "page",
    [
        Reply(body="<!DOCTYPE html><title>Back soon</title>"),
        Reply(body="Back soon"),
        Reply(status=401, body="<html><body>Back soon</body></html>"),
        Reply(status=404, body="Back soon", headers={"Content-Type": "text/html"}),
    ],
)
def test_a_preflight_page_leaves_the_kickoff_to_a_retry(server: FaultServer, page: Reply) -> None:
    server.on("GET /inputs", page, {"inputs": ["topic"]})
    task_run = TaskRun()
    said = r"Back soon.*If it stays so, this is not a crew deployment: check .* Host. No execution was started"
    with pytest.raises(CrewTryFailed, match=said):
        run(kickoff(), task_run)
    assert server.sent(POST) == []
    assert run(kickoff(), task_run.retry()) == "k-1"
