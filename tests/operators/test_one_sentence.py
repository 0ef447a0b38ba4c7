"""An expected failure reaches Airflow as one sentence, without causes and frames of ours; a bug keeps all it has."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSensorTimeout
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import Connect, TaskRun, run

import airflow_crew_provider
from airflow_crew_provider import exceptions
from airflow_crew_provider.decorators.crew import crew_task
from airflow_crew_provider.kickoff import request
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.task_groups.crew import CrewResultOperator
from scripts.stack.ports import free_port

pytestmark = pytest.mark.usefixtures("simulated_airflow")
OURS = str(Path(airflow_crew_provider.__file__).parent)
FAILED = {"status": "error", "error": "no ink left"}
RUNNING = {"status": "running", "progress": {"completed_tasks": 0, "total_tasks": 2}}
LACKING = Reply(body={"detail": "Missing inputs: tone"}, status=422)
OVER = Reply(body=RUNNING, headers={"Crew-Usage": '{"total_tokens": 90}'})
REFUSED = "GET /status/k-1 returned 401"
ANSWER = {"execution_id": "k-1", "crew_task_id": "t", "human_feedback": "", "is_approve": True}


@pytest.fixture(autouse=True)
def a_crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": ["topic"], "required": ["topic"]}).on("POST /kickoff", {"kickoff_id": "k-1"})
    server.on("POST /stop/k-1", {"status": "stopped"})


def kickoff(**more: Any) -> CrewKickoffOperator:
    given = {"task_id": "kickoff", "inputs": {"topic": "tea"}, "deferrable": False, "poll_interval": 0.05}
    return CrewKickoffOperator(**{**given, **more})


def waiting(**more: Any) -> CrewKickoffOperator:
    return kickoff(wait_for_completion=True, **more)


def sensor(**more: Any) -> CrewStatusSensor:
    return CrewStatusSensor(**{"task_id": "wait", "kickoff_id": "k-1", "poke_interval": 0.05, **more})


def printed(operator: Any) -> tuple[Exception, str]:
    """Return what a task fails with, and all that Airflow prints of it."""
    with pytest.raises((AirflowException, exceptions.CrewError)) as raised:
        run(operator, TaskRun(operator.task_id))
    return raised.value, "".join(traceback.format_exception(raised.value))


Cases = list[tuple[Callable[[], Any], dict[str, Any], type[Exception], list[str]]]
CASES: Cases = [
    (kickoff, {"GET /inputs": 401}, AirflowFailException, ["GET /inputs returned 401"]),
    (kickoff, {"POST /kickoff": 403}, AirflowFailException, ["POST /kickoff returned 403", "No execution was"]),
    (lambda: kickoff(inputs={}), {}, AirflowFailException, ["Missing inputs: topic"]),
    (kickoff, {"POST /kickoff": LACKING}, AirflowFailException, ["Missing inputs: tone"]),
    (waiting, {"GET /status/k-1": FAILED}, AirflowException, ["k-1 failed: no ink left"]),
    (lambda: waiting(deferrable=True), {"GET /status/k-1": FAILED}, AirflowException, ["k-1 failed: no ink left"]),
    (lambda: waiting(deferrable=True), {"GET /status/k-1": (RUNNING, FAILED)}, AirflowException, ["no ink left"]),
    (lambda: sensor(deferrable=True), {"GET /status/k-1": (RUNNING, FAILED)}, AirflowException, ["no ink left"]),
    (lambda: waiting(timeout=0.2), {"GET /status/k-1": RUNNING}, AirflowException, ["timed out", "was stopped"]),
    (lambda: waiting(max_total_tokens=5), {"GET /status/k-1": OVER}, AirflowFailException, ["90", "was stopped"]),
    (waiting, {"GET /status/k-1": 401}, AirflowException, [REFUSED]),
    (lambda: waiting(deferrable=True), {"GET /status/k-1": 401}, AirflowException, [REFUSED]),
    (lambda: sensor(deferrable=False), {"GET /status/k-1": FAILED}, AirflowFailException, ["failed: no ink left"]),
    (lambda: sensor(deferrable=True), {"GET /status/k-1": FAILED}, AirflowFailException, ["failed: no ink left"]),
    (lambda: sensor(deferrable=False, timeout=0.2), {"GET /status/k-1": RUNNING}, AirflowSensorTimeout, ["timed out"]),
    (lambda: CrewResumeOperator(task_id="resume", **ANSWER), {"GET /status/k-1": 401}, AirflowException, ["401"]),
]


@pytest.mark.parametrize(("task", "faults", "kind", "said"), CASES)
def test_an_expected_failure_is_one_sentence(
    server: FaultServer, task: Callable[[], Any], faults: dict[str, Any], kind: type[Exception], said: list[str]
) -> None:
    for what, fault in faults.items():
        server.on(what, *(fault if isinstance(fault, tuple) else [fault]))
    error, text = printed(task())
    assert isinstance(error, kind)
    assert OURS not in text, "no frame of ours"
    assert text.count("\nTraceback ") == 0, "no cause before or after it"
    sentence = text.strip().splitlines()[-1].partition(": ")[2]
    assert sentence == str(error)
    assert sentence.count(f"Connection 'crew_default' ({server.url})") == 1
    for words in said:
        assert words in sentence


def test_the_path_of_the_connection_is_said_too(server: FaultServer, connect: Connect) -> None:
    connect(f"{server.url}/crews/newsroom")
    server.on("GET /crews/newsroom/inputs", 401)
    assert str(printed(kickoff())[0]).endswith(f". Connection 'crew_default' ({server.url}/crews/newsroom)")


def test_a_refused_connection_is_one_sentence(connect: Connect, log_text: Callable[[], str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    connect(url)
    error, text = printed(kickoff())
    assert str(error).startswith("No response to GET /inputs: ")
    assert "Retrying" not in log_text()
    assert "could not be checked" not in log_text()
    assert str(error).endswith(f"No execution was started. Connection 'crew_default' ({url})")
    assert OURS not in text


def test_an_unknown_connection_is_one_sentence() -> None:
    error, text = printed(kickoff(crew_conn_id="crew_nowhere"))
    assert str(error).endswith("Connection 'crew_nowhere'")
    assert OURS not in text


def test_a_function_of_task_crew_ends_in_one_sentence(server: FaultServer) -> None:
    server.on("GET /inputs", 401)
    operator = crew_task(lambda: {"topic": "tea"}, task_id="kickoff")().operator
    assert OURS not in printed(operator)[1]


def test_a_result_without_a_record_is_one_sentence() -> None:
    error, text = printed(CrewResultOperator(task_id="result", records=[], execution_id="k-1"))
    assert "No wait has a record" in str(error)
    assert OURS not in text


@pytest.mark.since_airflow("3.1")
def test_a_task_that_asks_a_person_ends_in_one_sentence() -> None:
    from airflow_crew_provider.operators.review import CrewReviewOperator
    from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator

    record = {"state": "running"}
    for task in (
        CrewReviewOperator(task_id="ask", pending=record),
        CrewUsageApprovalOperator(task_id="ask", completed=record, max_total_tokens=5),
    ):
        assert OURS not in printed(task)[1]


def test_callbacks_find_what_the_failure_was_raised_from(server: FaultServer) -> None:
    server.on("GET /inputs", 401)
    error: Any = printed(kickoff())[0]
    assert isinstance(error.reason, exceptions.CrewUnauthorized)
    assert error.reason.status_code == 401


def test_a_bug_keeps_its_frames_and_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(request, "Kickoff")
    with pytest.raises(NameError) as raised:
        run(kickoff())
    assert OURS in "".join(traceback.format_exception(raised.value))
