"""Row A76: the XCom `crew_usage` of every try that ends by itself, with all executions since the task's last clear."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.server import FaultServer
from faults.variables import Variables
from faults.wire import Reply
from simulated_airflow import TaskRun, run
from waiting_tasks import in_both_places, kickoff_that_waits, sensor_that_waits

from airflow_crew_provider.wait import watch

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.row("A76")]


def status(word: str, tokens: int, **chain: Any) -> Reply:
    body: dict[str, Any] = {"status": word, "error": "no ink"} if word == "error" else {"status": word}
    if word == "completed":
        body |= {"result": {"output": "All", "tasks": []}, "execution_time": 1.0}
    return Reply(body=body, headers={"Crew-Usage": json.dumps({"total_tokens": tokens, **chain})})


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": [], "required": [], "continues": True})
    server.on("POST /kickoff", *({"kickoff_id": f"k-{number}"} for number in range(1, 6)))


def ended(operator: Any, task_run: TaskRun, *, fails: bool = False) -> list[tuple[str, str, int | None]]:
    """Run a try to its end; return what it pushed."""
    if fails:
        with pytest.raises(AirflowException):
            run(operator, task_run)
    else:
        run(operator, task_run)
    pushed = task_run.xcom["crew_usage"]["executions"]
    assert all(each["execution_id"] == each["kickoff_id"] for each in pushed)
    return [(each["kickoff_id"], each["state"], (each["usage"] or {}).get("total_tokens")) for each in pushed]


@in_both_places
def test_every_try_pushes_cumulative_usage_until_a_clear(server: FaultServer, deferrable: bool) -> None:
    task_run = TaskRun(retries=5)
    operator = kickoff_that_waits(deferrable=deferrable, retry_from="start")
    server.on("GET /status/k-1", status("error", 100)).on("GET /status/k-2", status("error", 50))
    server.on("GET /status/k-3", status("completed", 300)).on("GET /status/k-4", status("completed", 7))
    assert ended(operator, task_run, fails=True) == [("k-1", "error", 100)]
    assert ended(operator, task_run.retry(), fails=True) == [("k-1", "error", 100), ("k-2", "error", 50)]
    all_of_them = [("k-1", "error", 100), ("k-2", "error", 50), ("k-3", "completed", 300)]
    assert ended(operator, task_run.retry()) == all_of_them
    assert ended(operator, task_run.clear()) == [("k-4", "completed", 7)]


@in_both_places
def test_a_chain_has_one_entry_with_its_total_usage(server: FaultServer, deferrable: bool) -> None:
    task_run = TaskRun(retries=5)
    operator = kickoff_that_waits(deferrable=deferrable)
    server.on("GET /status/k-1", status("error", 100))
    server.on("GET /status/k-2", status("error", 50, chain_usage={"total_tokens": 150}))
    server.on("GET /status/k-3", status("completed", 30, chain_usage={"total_tokens": 180}))
    assert ended(operator, task_run, fails=True) == [("k-1", "error", 100)]
    assert ended(operator, task_run.retry(), fails=True) == [("k-2", "error", 150)]
    assert ended(operator, task_run.retry()) == [("k-3", "completed", 180)]


@in_both_places
def test_a_timeout_pushes_what_the_last_poll_said(server: FaultServer, deferrable: bool) -> None:
    server.on("GET /status/k-1", status("running", 40))
    operator = kickoff_that_waits(deferrable=deferrable, timeout=0.3, cancel_on_kill=False)
    pushed = ended(operator, TaskRun(), fails=True)
    assert [(kickoff_id, state) for kickoff_id, state, _ in pushed] == [("k-1", "running")]


def test_an_unnoticed_failed_execution_is_found_by_the_next_try(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FORGIVEN", 0.0)
    monkeypatch.setattr(watch, "LEAST_FAILURES", 1)
    task_run = TaskRun(retries=5)
    operator = kickoff_that_waits(deferrable=False, retry_from="start")
    server.on("GET /status/k-1", 500)
    assert ended(operator, task_run, fails=True) == [("k-1", "running", None)]
    server.on("GET /status/k-1", status("error", 100)).on("GET /status/k-2", status("completed", 20))
    assert ended(operator, task_run.retry()) == [("k-1", "error", 100), ("k-2", "completed", 20)]


@in_both_places
def test_a_sensor_pushes_the_execution_that_it_waited_for(server: FaultServer, deferrable: bool) -> None:
    server.on("GET /status/k-1", status("completed", 40))
    assert ended(sensor_that_waits(deferrable=deferrable), TaskRun("wait")) == [("k-1", "completed", 40)]


def test_a_try_that_starts_nothing_pushes_nothing(server: FaultServer) -> None:
    server.on("POST /kickoff", 429)
    task_run = TaskRun()
    with pytest.raises(AirflowException):
        run(kickoff_that_waits(), task_run)
    assert "crew_usage" not in task_run.xcom


def test_a_try_that_starts_nothing_pushes_what_earlier_ones_used(server: FaultServer) -> None:
    task_run = TaskRun(retries=5)
    server.on("GET /status/k-1", status("error", 100))
    assert ended(kickoff_that_waits(deferrable=False), task_run, fails=True) == [("k-1", "error", 100)]
    refused = kickoff_that_waits(deferrable=False, inputs={"topic": {1, 2}})
    assert ended(refused, task_run.retry(), fails=True) == [("k-1", "error", 100)]


def test_usage_that_cannot_be_stored_is_reported_as_such(
    server: FaultServer, a_memory: Variables, log_text: Callable[[], str]
) -> None:
    def fail(request: object) -> Reply:
        a_memory.writable = False
        return status("error", 100)

    server.on("GET /status/k-1", fail)
    assert ended(kickoff_that_waits(deferrable=False), TaskRun(retries=5), fails=True) == [("k-1", "error", 100)]
    assert "XCom crew_usage of this or a later try may lack executions: The stored state" in log_text()


def test_a_second_try_in_one_process_pushes_no_earlier_usage(server: FaultServer) -> None:
    task_run = TaskRun(retries=5)
    operator = kickoff_that_waits(deferrable=False)
    server.on("GET /status/k-1", status("completed", 40))
    operator.execute(task_run.context())  # as in `dag.test()`, which starts no process for a try
    pushed = task_run.xcom.pop("crew_usage")
    assert [each["kickoff_id"] for each in pushed["executions"]] == ["k-1"]
    server.on("POST /kickoff", 429)
    again = task_run.clear()
    with pytest.raises(AirflowException):
        operator.execute(again.context())
    assert "crew_usage" not in {**again.xcom, **task_run.xcom}


def test_storing_what_an_execution_continues_needs_no_extra_write(
    server: FaultServer, a_memory: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writes(**how: Any) -> int:
        server.on("POST /kickoff", {"kickoff_id": "k-1"}, {"kickoff_id": "k-2"})
        server.on("GET /status/k-1", status("error", 100)).on("GET /status/k-2", status("completed", 50))
        task_run, stored = TaskRun(retries=5), Counter[str]()
        ended(kickoff_that_waits(deferrable=False, **how), task_run, fails=True)
        with monkeypatch.context() as patch:
            store = a_memory.set
            patch.setattr(a_memory, "set", lambda key, *args, **more: (stored.update([key]), store(key, *args, **more)))
            ended(kickoff_that_waits(deferrable=False, **how), task_run.retry())
        a_memory.kept.clear()
        return sum(count for key, count in stored.items() if key.startswith("crew_task"))

    assert writes() == writes(retry_from="start")
