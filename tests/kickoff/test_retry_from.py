"""A retry after an execution that failed continues it, where the service can; and it never starts two."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.decorators.crew import crew_task
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed

pytestmark = [pytest.mark.row("N40"), pytest.mark.usefixtures("simulated_airflow")]
POST = "POST /kickoff"
INPUTS = "GET /inputs"
CONTINUES = {"inputs": ["topic"], "required": ["topic"], "continues": True}
FAILED = {"status": "error", "error": "no ink", "execution_time": 1.0}
COMPLETED = {"status": "completed", "result": {"output": "All", "tasks": []}, "execution_time": 1.0}
IDENTITY = {"dag_id": "dag", "run_id": "run", "task_id": "kickoff", "map_index": -1}
UNKNOWN = Reply(status=404, body={"detail": "Execution not found"})
REFUSED = Reply(status=422, body={"detail": "Execution k-1 cannot be continued: its finished task 'a' has changed."})
CONTINUED = Reply(status=409, body={"detail": "The execution is continued already.", "kickoff_id": "k-9"})
LogText = Callable[[], str]


def kickoff(**more: Any) -> CrewKickoffOperator:
    given = {"inputs": {"topic": "AI"}, "wait_for_completion": True, "deferrable": False, "poll_interval": 0.01}
    return CrewKickoffOperator(**{"task_id": "kickoff", **given, **more})


@pytest.fixture(autouse=True)
def service(server: FaultServer, connect: Connect) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(INPUTS, CONTINUES).on(POST, {"kickoff_id": "k-1"}, {"kickoff_id": "k-2"})
    server.on("GET /status/k-1", FAILED).on("GET /status/k-2", COMPLETED)


def failed_once(operator: CrewKickoffOperator | None = None) -> TaskRun:
    """A task instance in its second try, after an execution that failed."""
    task_run = TaskRun(retries=5)
    with pytest.raises(CrewTryFailed, match=r"k-1 failed: no ink\. A retry of this task starts a new execution"):
        run(operator or kickoff(), task_run)
    return task_run.retry()


def sent(server: FaultServer) -> list[Any]:
    """What each kickoff was to continue."""
    return [request.json.get("continueFrom") for request in server.sent(POST)]


def keys(server: FaultServer) -> list[str]:
    return [request.headers["idempotency-key"] for request in server.sent(POST)]


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("check_inputs", [False, True])
def test_a_retry_continues_the_execution_that_failed(
    server: FaultServer, log_text: LogText, deferrable: bool, check_inputs: bool
) -> None:
    operator = kickoff(deferrable=deferrable, check_inputs=check_inputs)
    assert run(operator, failed_once(operator))["kickoff_id"] == "k-2"
    assert sent(server) == [None, "k-1"]
    assert len(set(keys(server))) == 2
    assert "Continuing execution k-1 from the task that failed" in log_text()


def test_the_decorated_task_does_too(server: FaultServer) -> None:
    operator = crew_task(lambda: {"topic": "AI"}, task_id="kickoff", poll_interval=0.01)().operator
    run(operator, failed_once(operator))
    assert sent(server) == [None, "k-1"]


def test_a_retry_leaves_a_flows_restored_state_to_the_service(server: FaultServer) -> None:
    operator = kickoff(restore_from="state-1")
    run(operator, failed_once(operator))
    assert [request.json.get("restoreFromStateId") for request in server.sent(POST)] == ["state-1", None]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"inputs": ["topic"]}, "the service cannot continue executions"),
        ({"inputs": ["topic"], "continues": "yes"}, "the service cannot continue executions"),
        (500, "it is not known whether the service can continue executions"),
    ],
)
def test_a_service_without_continuation_support_starts_from_the_beginning(
    server: FaultServer, log_text: LogText, answer: Any, why: str
) -> None:
    server.on(INPUTS, answer)
    run(kickoff(), failed_once())
    assert sent(server) == [None, None]
    assert f"Starting from the beginning, because {why}" in log_text()


def test_anything_but_a_retry_from_the_failed_task_starts_anew(server: FaultServer) -> None:
    server.on(POST, {"kickoff_id": "k-1"})
    start = kickoff(retry_from="start")
    with pytest.raises(CrewTryFailed):
        run(start, failed_once(start))
    with pytest.raises(CrewTryFailed):
        run(kickoff(), failed_once().clear())
    with pytest.raises(CrewTryFailed):
        run(kickoff(inputs={"topic": "more"}), failed_once())
    assert sent(server) == [None] * 6


@pytest.mark.parametrize("refused", [UNKNOWN, REFUSED])
def test_an_uncontinuable_execution_is_started_anew_in_the_same_try(
    server: FaultServer, log_text: LogText, refused: Reply
) -> None:
    server.on(POST, {"kickoff_id": "k-1"}, refused, {"kickoff_id": "k-2"})
    assert run(kickoff(), failed_once())["kickoff_id"] == "k-2"
    assert sent(server) == [None, "k-1", None]
    assert len(set(keys(server))) == 3
    assert re.search(r"Execution k-1 is not continued: .* returned 4.*[a-z]\. Starting from the beginning", log_text())


def test_missing_inputs_are_missing_inputs(server: FaultServer) -> None:
    server.on(INPUTS, {"inputs": ["topic", "tone"], "required": None, "continues": True})
    server.on(POST, {"kickoff_id": "k-1"}, Reply(status=422, body={"detail": "Missing inputs: tone"}))
    with pytest.raises(CrewTaskFailed, match="Missing inputs: tone"):
        run(kickoff(), failed_once())
    assert sent(server) == [None, "k-1"]


@pytest.mark.parametrize("answer", [NoReply(RESET), Reply(status=502)])
def test_a_lost_continuation_is_repeated_unchanged_under_the_same_key(server: FaultServer, answer: Any) -> None:
    server.on(POST, {"kickoff_id": "k-1"}, answer, {"kickoff_id": "k-2"})
    task_run = failed_once()
    with pytest.raises(CrewTryFailed):
        run(kickoff(), task_run)
    assert run(kickoff(), task_run.retry())["kickoff_id"] == "k-2"
    _, *continuing = server.sent(POST)
    assert [request.json["continueFrom"] for request in continuing] == ["k-1", "k-1"]
    assert continuing[0].json == continuing[1].json
    assert keys(server)[1] == keys(server)[2] != keys(server)[0]


def test_a_retry_sends_the_post_a_dead_worker_never_sent(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    task_run = failed_once()
    with monkeypatch.context() as patch:

        def die(request: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr("airflow_crew_provider.hooks.crew.CrewHook.send_kickoff", lambda *_, **__: die(None))
        with pytest.raises(KeyboardInterrupt):
            run(kickoff(), task_run)
    assert run(kickoff(), task_run.retry())["kickoff_id"] == "k-2"
    assert sent(server) == [None, "k-1"]


def test_a_refused_connection_leaves_the_execution_to_be_continued(server: FaultServer) -> None:
    server.on(POST, {"kickoff_id": "k-1"}, Reply(status=429), {"kickoff_id": "k-2"})
    task_run = failed_once()
    with pytest.raises(AirflowException):
        run(kickoff(), task_run)
    run(kickoff(), task_run.retry())
    assert sent(server) == [None, "k-1", "k-1"]


def details(airflow: Any) -> dict[str, Any]:
    return {"state": "running", "meta": {"airflow": airflow}}


def test_a_continuation_this_task_already_started_is_adopted(server: FaultServer, connect: Connect) -> None:
    """Without keys, the second request of a lost answer is told of what the first one has started."""
    connect(server.url)
    server.on(POST, {"kickoff_id": "k-1"}, NoReply(RESET), CONTINUED)
    server.on("GET /executions/k-9", details({**IDENTITY, "base_url": "http://airflow"}))
    server.on("GET /status/k-9", COMPLETED)
    operator = kickoff(on_unknown_outcome="retry")
    task_run = failed_once(operator)
    with pytest.raises(CrewTryFailed):
        run(operator, task_run)
    assert run(operator, task_run.retry())["kickoff_id"] == "k-9"
    assert sent(server) == [None, "k-1", "k-1"]


@pytest.mark.parametrize(
    "found", [details({**IDENTITY, "run_id": "other"}), details(None), details({**IDENTITY, "region_id": "r"})]
)
def test_somebody_elses_continuation_is_neither_adopted_nor_repeated(
    server: FaultServer, found: dict[str, Any]
) -> None:
    server.on(POST, {"kickoff_id": "k-1"}, CONTINUED).on("GET /executions/k-9", found)
    with pytest.raises(CrewTaskFailed, match="Execution k-9 already continues k-1, and this task did not start it"):
        run(kickoff(), failed_once())
    assert sent(server) == [None, "k-1"]


def test_nothing_is_started_while_a_continuations_owner_is_unknown(server: FaultServer) -> None:
    server.on(POST, {"kickoff_id": "k-1"}, CONTINUED)
    server.on("GET /executions/k-9", 500, details(IDENTITY)).on("GET /status/k-9", COMPLETED)
    task_run = failed_once()
    with pytest.raises(CrewTryFailed, match="Execution k-9 already continues k-1, and it is not known what started it"):
        run(kickoff(), task_run)
    assert run(kickoff(), task_run.retry())["kickoff_id"] == "k-9"
    assert sent(server) == [None, "k-1"]


def test_after_a_409_no_later_try_sends_anything(server: FaultServer, connect: Connect) -> None:
    connect(server.url)
    server.on(POST, {"kickoff_id": "k-1"}, CONTINUED, UNKNOWN, {"kickoff_id": "k-2"})
    server.on("GET /executions/k-9", 503)
    operator = kickoff(on_unknown_outcome="retry")
    task_run = failed_once(operator)
    for changed in ({}, {}, {"retry_from": "start"}):
        with pytest.raises(
            CrewTryFailed, match="Execution k-9 already continues k-1, and it is not known what started it"
        ):
            run(kickoff(on_unknown_outcome="retry", **changed), task_run)
        task_run = task_run.retry()
    with pytest.raises(CrewTaskFailed, match="Execution k-9 already continues k-1, and the request has changed since"):
        run(kickoff(on_unknown_outcome="retry", inputs={"topic": "more"}), task_run)
    assert sent(server) == [None, "k-1"]


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_budget_is_of_the_whole_chain(server: FaultServer, deferrable: bool) -> None:
    used = '{"total_tokens": 60, "chain_usage": {"total_tokens": 120}}'
    server.on("GET /status/k-1", Reply(body=FAILED, headers={"Crew-Usage": '{"total_tokens": 60}'}))
    server.on("GET /status/k-2", Reply(body=COMPLETED, headers={"Crew-Usage": used}))
    operator = kickoff(max_total_tokens=100, deferrable=deferrable)
    task_run = failed_once(operator)
    with pytest.raises(CrewTaskFailed, match="used 120 tokens, more than max_total_tokens of 100"):
        run(operator, task_run)


def test_a_chain_over_its_budget_that_failed_is_not_continued(server: FaultServer) -> None:
    used = '{"total_tokens": 60, "chain_usage": {"total_tokens": 120}}'
    server.on("GET /status/k-1", FAILED, Reply(body=FAILED, headers={"Crew-Usage": used}))
    operator = kickoff(max_total_tokens=100)
    with pytest.raises(CrewTaskFailed, match="used 120 tokens, more than max_total_tokens of 100"):
        run(operator, failed_once(operator))
    assert sent(server) == [None]


def test_an_invalid_retry_from_is_refused_at_dag_parsing() -> None:
    with pytest.raises(ValueError, match="retry_from must be 'failed_task' or 'start', not 'task'"):
        kickoff(retry_from="task")
