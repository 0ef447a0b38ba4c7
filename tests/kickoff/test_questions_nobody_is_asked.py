"""A task that asks nobody: a tool call of unknown outcome fails its execution, and other questions are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.decorators.crew import crew_task
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.narrator import NOBODY_IS_ASKED
from airflow_crew_provider.wait.outcomes import CrewTryFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")
RESUME = "POST /resume"
ASK = {"kind": "unknown_outcome", "agent": "Writer", "tool": "send_mail", "arguments": {"to": "ann"}, "number": 2}
TEXT = "Question 2: was send_mail done?"
ASKS = {
    "status": "pending",
    "current_task": "draft_task",
    "task_id": "draft_task#2",
    "task_output": TEXT,
    "question": "Was send_mail done?",
    "outcomes": ["done", "run_again", "fail"],
    "ask": ASK,
}
TOOL = {**ASKS, "outcomes": ["approve", "deny"], "ask": {**ASK, "kind": "tool"}}
FAILED = {"status": "error", "error": "the outcome of send_mail is unknown", "execution_time": 1.0}
COMPLETED = {"status": "completed", "result": {"output": "All", "tasks": []}, "execution_time": 1.0}
RESUMED = {"status": "resumed", "message": "Execution resumed"}
LogText = Callable[[], str]


def kickoff(**more: Any) -> CrewKickoffOperator:
    given = {"inputs": {"topic": "AI"}, "wait_for_completion": True, "deferrable": False, "poll_interval": 0.01}
    return CrewKickoffOperator(**{"task_id": "kickoff", **given, **more})


@pytest.fixture(autouse=True)
def service(server: FaultServer, connect: Connect) -> None:
    connect(server.url, idempotency_keys=True)
    server.on("GET /inputs", {"inputs": ["topic"]}).on("POST /kickoff", {"kickoff_id": "k-1"}, {"kickoff_id": "k-2"})
    server.on("GET /status/k-1", lambda _: FAILED if server.sent(RESUME) else ASKS)
    server.on(RESUME, RESUMED)


FAILS = r"k-1 failed: the outcome of send_mail is unknown\. A retry of this task starts a new execution"


@pytest.mark.parametrize("deferrable", [False, True])
def test_an_unknown_outcome_is_answered_fail_and_fails_the_task(
    server: FaultServer, log_text: LogText, deferrable: bool
) -> None:
    with pytest.raises(CrewTryFailed, match=FAILS):
        run(kickoff(deferrable=deferrable))
    [answer] = [request.json for request in server.sent(RESUME)]
    named = ("execution_id", "task_id", "outcome", "is_approve", "human_feedback")
    assert [answer[name] for name in named] == ["k-1", "draft_task#2", "fail", False, ""]
    assert "output_sha256" not in answer
    assert "it is not known whether the tool send_mail has run. This task asks nobody" in log_text()


def test_the_decorated_task_does_the_same(server: FaultServer) -> None:
    with pytest.raises(CrewTryFailed, match=FAILS):
        run(crew_task(lambda: {"topic": "AI"}, task_id="kickoff", poll_interval=0.01)().operator)
    assert len(server.sent(RESUME)) == 1


def test_the_answer_names_the_hash_where_the_service_compares_it(server: FaultServer) -> None:
    asks = Reply(body=ASKS, headers={"Crew-Draft-Hash": "sha256"})
    server.on("GET /status/k-1", lambda _: Reply(body=FAILED) if server.sent(RESUME) else asks)
    with pytest.raises(CrewTryFailed, match=FAILS):
        run(kickoff())
    assert server.sent(RESUME)[0].json["output_sha256"] == output_sha256(TEXT)


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize(
    "lost",
    [
        Reply(status=400, body={"detail": "it does not wait"}),
        Reply(status=404, body={"detail": "no such task"}),
        NoReply(RESET),
    ],
    ids=["400", "404", "lost"],
)
def test_the_next_poll_sees_a_lost_answer_or_somebody_elses(server: FaultServer, lost: Any, deferrable: bool) -> None:
    server.on(RESUME, lost)
    with pytest.raises(CrewTryFailed, match=FAILS):
        run(kickoff(deferrable=deferrable))


def test_a_refused_answer_ends_the_try_and_the_next_answers(server: FaultServer) -> None:
    server.on("GET /status/k-1", lambda _: FAILED if len(server.sent(RESUME)) > 1 else ASKS)
    server.on(RESUME, Reply(status=500, body={"detail": "database"}), RESUMED)
    task_run = TaskRun(retries=2)
    with pytest.raises(AirflowException, match="k-1 is waiting for an answer; a retry of this task answers again"):
        run(kickoff(), task_run)
    with pytest.raises(CrewTryFailed, match=FAILS):
        run(kickoff(), task_run.retry())
    assert len(server.sent("POST /kickoff")) == 1


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("asks", [TOOL, {**TOOL, "ask": {"kind": "vote"}}], ids=["tool", "unreadable"])
def test_other_questions_are_awaited_with_a_nobody_is_asked_warning(
    server: FaultServer, log_text: LogText, asks: Any, deferrable: bool
) -> None:
    server.on("GET /status/k-1", asks, asks, COMPLETED)
    assert run(kickoff(deferrable=deferrable))["output"] == "All"
    assert server.sent(RESUME) == []
    assert NOBODY_IS_ASKED in log_text()


def test_a_sensor_that_waits_past_questions_answers_none(server: FaultServer) -> None:
    server.on("GET /status/k-1", ASKS, ASKS, COMPLETED)
    sensor = CrewStatusSensor(
        task_id="result", kickoff_id="k-1", wait_past_pending=True, poke_interval=0.01, deferrable=False
    )
    assert run(sensor)["output"] == "All"
    assert server.sent(RESUME) == []


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_wait_for_questions_returns_the_ask_in_its_record(server: FaultServer, deferrable: bool) -> None:
    record = run(CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0.01, deferrable=deferrable))
    assert (record["ask"], record["crew_task_id"], record["output"]) == (ASK, "draft_task#2", TEXT)
