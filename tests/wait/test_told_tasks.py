"""The log of a wait tells of each task of the crew when it has ended: who did it, and in how many seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import PATHS, TOKEN, TRIGGERER, WORKER, run, wait

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait.watch import COMPLETED

pytestmark = pytest.mark.usefixtures("simulated_airflow")
POLL, DETAILS = "GET /status/k-1", "GET /executions/k-1"
VIEW = {"Crew-View": "/view?id=k-1"}
TASKS = [
    {"task_id": "research", "agent": "Researcher", "output": "notes", "execution_time": 12.04},
    {"task_id": "write", "agent": f"Writer\n{TOKEN}", "output": "text", "execution_time": None},
]
DONE = {"status": "completed", "result": {"output": "text", "tasks": TASKS}, "execution_time": 20.0}
RESEARCHED = "Execution k-1: task research by Researcher has ended after 12.0 s"
WRITTEN = "Execution k-1: task write by Writer *** has ended"
UNREADABLE = [{"state": 5}, {"state": "running"}, {"state": "running", "tasks": [5]}]
Log = Callable[[], str]


def at(task: str, ended: int | None, *, headers: Any = None) -> Reply:
    progress = {} if ended is None else {"progress": {"completed_tasks": ended, "total_tasks": 2}}
    return Reply(body={"status": "running", "current_task": task, **progress}, headers=headers or {})


def details(*ended: dict[str, Any]) -> dict[str, Any]:
    tasks = [{"name": each["task_id"], "agent": each["agent"], "seconds": each["execution_time"]} for each in ended]
    return {"state": "running", "tasks": [{**each, "state": "completed"} for each in tasks] + [{"state": "running"}]}


def told(log_text: Log) -> list[str]:
    """Return what the log says of tasks that have ended, each line once for each time that it is said."""
    lines = [line.partition("Execution k-1: task ") for line in log_text().splitlines()]
    return [(name + rest).split(" [")[0].strip() for _, name, rest in lines if name]


@pytest.mark.parametrize("path", PATHS)
def test_a_task_is_told_with_agent_and_seconds_given_details(server: FaultServer, log_text: Log, path: str) -> None:
    server.on(POLL, *(at("research", 0, headers=VIEW),) * 3, *(at("write", 1, headers=VIEW),) * 3, DONE)
    server.on(DETAILS, details(TASKS[0]))
    assert wait(path).kind == COMPLETED
    assert told(log_text) == [RESEARCHED, WRITTEN]
    assert len(server.sent(DETAILS)) == 1, "one request for a change, none for polls without one, none at the end"


@pytest.mark.parametrize("path", [WORKER, TRIGGERER])
def test_without_details_a_task_change_is_told_with_elapsed_time(server: FaultServer, log_text: Log, path: str) -> None:
    server.on(POLL, at("research", 0), at("research", 0), at("write", 1), {**DONE, "result": {"output": "text"}})
    assert wait(path).kind == COMPLETED
    lines = told(log_text)
    assert [line.partition(" after ")[0] for line in lines] == [
        f"Execution k-1: task {task} has ended" for task in ("research", "write")
    ]
    assert all(" after about " in line for line in lines)
    assert server.sent(DETAILS) == []


@pytest.mark.parametrize("answer", [404, 401, 500, "<html>", *UNREADABLE])
@pytest.mark.parametrize("path", [WORKER, TRIGGERER])
def test_details_that_cannot_be_had_cost_the_details_only(
    server: FaultServer, log_text: Log, path: str, answer: Any
) -> None:
    server.on(POLL, *(at("research", 0, headers=VIEW),) * 2, *(at("write", 1, headers=VIEW),) * 3, DONE)
    server.on(DETAILS, answer)
    assert wait(path).kind == COMPLETED
    first, last = told(log_text)
    assert first.startswith("Execution k-1: task research has ended after about ")
    assert last == WRITTEN
    assert len(server.sent(DETAILS)) == 1
    assert "has failed" not in log_text()


def test_slow_details_delay_the_wait_only_briefly(
    server: FaultServer, log_text: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_crew_provider.wait import watch

    monkeypatch.setattr(watch, "RESULTS_WITHIN", 0.2)
    server.on(POLL, at("research", 0, headers=VIEW), at("write", 1, headers=VIEW), DONE)
    server.on(DETAILS, Reply(body=details(TASKS[0]), delay=3600))
    assert wait(WORKER).kind == COMPLETED
    assert told(log_text)[-1] == WRITTEN


def test_a_deferred_task_tells_each_end_once(server: FaultServer, log_text: Log) -> None:
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"})
    server.on(POLL, at("write", 1, headers=VIEW), at("write", 1, headers=VIEW), DONE)
    server.on(DETAILS, details(TASKS[0]))
    run(CrewKickoffOperator(task_id="k", inputs={}, wait_for_completion=True, deferrable=True, poll_interval=0.05))
    assert told(log_text) == [RESEARCHED, WRITTEN]
    assert len(server.sent(DETAILS)) == 1


def test_many_tasks_at_once_are_bounded(server: FaultServer, log_text: Log) -> None:
    many = [{**TASKS[0], "task_id": f"t{number}"} for number in range(500)]
    server.on(POLL, {**DONE, "result": {"output": "text", "tasks": many}})
    assert wait(WORKER).kind == COMPLETED
    assert len(told(log_text)) == 20
    assert "and 480 more tasks" in log_text()
