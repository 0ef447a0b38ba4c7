"""Airflow's metrics as a StatsD server receives them: from a task's process, and from a triggerer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.dialects import PENDING_SPEC, SPEC
from faults.server import FaultServer
from faults.statsd import Metric, StatsdServer, receive
from faults.wire import CLOSE, NoReply, Reply
from simulated_airflow import run

from airflow_crew_provider.api.status import USAGE
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from scripts.stack.waiting import wait_until

pytestmark = [
    pytest.mark.usefixtures("simulated_airflow"),
    pytest.mark.since_airflow("3.3"),
]  # older ones configure their metrics in other ways

POLL = "GET /status/k-1"
USED = {**SPEC.completed, "usage_metrics": {"total_tokens": 1250, "cost_usd": 0.1 + 0.2}}
OF_CREW = {"conn_id": "crew_default"}
ANSWER = {"execution_id": "k-1", "crew_task_id": "draft_task", "human_feedback": "", "is_approve": True}
ENDED = {f"execution.{each}" for each in ("started", "polls", "completed", "duration", "tokens", "cost_usd_micros")}


@pytest.fixture
def of_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdServer]:
    """What the processes of tasks send."""
    yield from receive("airflow.sdk.observability", monkeypatch)


@pytest.fixture
def of_triggerer(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdServer]:
    """What a triggerer sends."""
    yield from receive("airflow.observability", monkeypatch)


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": []})
    server.on("POST /kickoff", {"kickoff_id": "k-1"})


def kickoff(**more: object) -> CrewKickoffOperator:
    return CrewKickoffOperator(**{"task_id": "kickoff", "inputs": {}, "poll_interval": 0.05, **more})


def received(server: StatsdServer, number: int) -> set[tuple[str, float, str]]:
    """Return name, value and kind of so many metrics, all of which name the connection."""
    metrics: list[Metric] = wait_until(lambda: len(server.metrics()) >= number and server.metrics(), "the metrics")
    assert all(OF_CREW.items() <= each.tags.items() for each in metrics)
    return {(each.name, each.value, each.kind) for each in metrics}


def test_a_task_waiting_in_its_worker_sends_all_execution_metrics(server: FaultServer, of_tasks: StatsdServer) -> None:
    server.on(POLL, SPEC.running, USED)
    run(kickoff(wait_for_completion=True, deferrable=False))
    assert received(of_tasks, 7) == {
        ("execution.started", 1, "c"),
        ("execution.polls", 1, "c"),
        ("execution.completed", 1, "c"),
        ("execution.duration", 3250, "ms"),
        ("execution.tokens", 1250, "c"),
        ("execution.cost_usd_micros", 300_000, "c"),
    }
    assert of_tasks.total("execution.polls") == 2


def test_polls_of_a_triggerer_go_through_the_triggerers_own_metrics(
    server: FaultServer, of_tasks: StatsdServer, of_triggerer: StatsdServer
) -> None:
    server.on(POLL, SPEC.running, SPEC.running, USED)
    run(kickoff(wait_for_completion=True, deferrable=True))
    assert received(of_triggerer, 1) == {("execution.polls", 1, "c")}
    sent = len(server.sent(POLL))
    wait_until(lambda: sum(each.total("execution.polls") for each in (of_tasks, of_triggerer)) == sent, "the polls")


def test_a_failed_execution_is_counted_once(server: FaultServer, of_tasks: StatsdServer) -> None:
    server.on(POLL, SPEC.failed)
    with pytest.raises(CrewTaskFailed):
        run(CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0.05, deferrable=False))
    assert received(of_tasks, 2) == {("execution.polls", 1, "c"), ("execution.failed", 1, "c")}


def test_a_figure_that_no_counter_holds_is_left_out(server: FaultServer, of_tasks: StatsdServer) -> None:
    huge = {**SPEC.completed, "usage_metrics": {"total_tokens": 2**63, "cost_usd": 10**15}}
    server.on(POLL, huge, USED)
    for _ in range(2):
        run(kickoff(wait_for_completion=True, deferrable=False))
    names = ("execution.tokens", "execution.cost_usd_micros")
    counted = [each for each in received(of_tasks, 10) if each[0] in names]
    assert sorted(counted) == [("execution.cost_usd_micros", 300_000, "c"), ("execution.tokens", 1250, "c")]


@pytest.mark.parametrize("status", [SPEC.failed, SPEC.running], ids=["failed", "over its budget"])
def test_usage_is_counted_for_failed_and_stopped_executions_too(
    server: FaultServer, of_tasks: StatsdServer, status: object
) -> None:
    server.on(POLL, Reply(body=status, headers={USAGE: '{"total_tokens": 900, "cost_usd": 0.25}'}))
    server.on("POST /stop/k-1", {"status": "stopped", "kickoffId": "k-1"})
    with pytest.raises(CrewTaskFailed):
        run(CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0.05, deferrable=False, max_cost=0.125))
    used = {("execution.tokens", 900, "c"), ("execution.cost_usd_micros", 250_000, "c")}
    assert received(of_tasks, 4) == {("execution.polls", 1, "c"), ("execution.failed", 1, "c"), *used}


def test_a_draft_ends_a_wait_and_no_execution(server: FaultServer, of_tasks: StatsdServer) -> None:
    server.on(POLL, PENDING_SPEC)
    run(CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0.05, deferrable=False))
    assert received(of_tasks, 1) == {("execution.polls", 1, "c")}


def test_a_lost_response_is_counted_as_unknown_not_as_started(server: FaultServer, of_tasks: StatsdServer) -> None:
    server.on("POST /kickoff", NoReply(CLOSE))
    with pytest.raises(CrewTaskFailed, match="so none is sent"):
        run(kickoff())
    assert received(of_tasks, 1) == {("execution.unknown", 1, "c")}
    assert of_tasks.total("execution.unknown", request="kickoff") == 1


def test_a_lost_answer_of_a_resume_is_unknown_too(server: FaultServer, of_tasks: StatsdServer) -> None:
    server.on(POLL, PENDING_SPEC).on("POST /resume", NoReply(CLOSE))
    with pytest.raises(AirflowException):
        run(CrewResumeOperator(task_id="resume", **ANSWER))
    wait_until(lambda: of_tasks.total("execution.unknown", request="resume") == 1, "the metric")


def test_a_kickoff_that_was_refused_is_neither_started_nor_unknown(server: FaultServer, of_tasks: StatsdServer) -> None:
    server.on("POST /kickoff", 401).on(POLL, USED)
    with pytest.raises(CrewTaskFailed):
        run(kickoff())
    run(CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0.05, deferrable=False))  # sends the next ones
    assert {name for name, _, _ in received(of_tasks, 5)} == ENDED - {"execution.started"}
