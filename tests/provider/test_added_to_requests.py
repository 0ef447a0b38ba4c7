"""What an operator adds to a request by itself: never part of what names the request, and the same when sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.compat.task_state import VariableTaskState
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.kickoff.post_record import Sender
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

SAMPLES = [
    pytest.param(sample, id=path.parent.name)
    for path in sorted((Path(__file__).parents[1] / "samples").glob("*/kickoffs.json"))
    for sample in json.loads(path.read_text("utf-8"))
]
POST = "POST /kickoff"
IDENTITY = {"dag_id": "dag", "run_id": "run", "task_id": "kickoff", "map_index": -1}
OF_ANOTHER_RELEASE = {"airflow": {**IDENTITY, "a_field": "of another release"}}
REUSED = Reply(status=422, body={"detail": "This Idempotency-Key was used before, with another body."})


def kickoff(**more: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(**{"task_id": "kickoff", "inputs": {"topic": "AI"}, "check_inputs": False, **more})


@pytest.fixture(autouse=True)
def keyed(server: FaultServer, connect: Connect) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POST, {"kickoff_id": "k-1"}).on("GET /status/k-1", {"status": "running"})


@pytest.fixture
def left(store_of: Callable[[TaskRun], Any], variables: Any) -> Callable[..., TaskRun]:
    """Return a task instance whose first try left a record, in its second one."""

    def left(record: Any, arguments: Any) -> TaskRun:
        task_run = TaskRun(retries=2)
        webhooks = CrewHook().with_credentials(arguments.get("webhooks"))
        stored = {**record, **Sender.of(CrewHook().connection, webhooks).as_dict()}
        task_run.store.set("crew_kickoff", stored)
        VariableTaskState(IDENTITY, "crew_kickoff").keep(stored)
        return task_run.retry()

    return left


@pytest.mark.row("N32", "A8")
@pytest.mark.parametrize("sample", SAMPLES)
def test_n32_a_record_of_an_earlier_release_is_of_the_same_request(
    server: FaultServer, left: Callable[..., TaskRun], sample: Any
) -> None:
    task_run = left({**sample["record"], "kickoff_id": "k-1"}, sample["arguments"])
    assert run(kickoff(**sample["arguments"]), task_run) == "k-1"
    assert not server.sent(POST)
    assert VariableTaskState(IDENTITY, "crew_kickoff").key == sample["variable"]


@pytest.mark.row("N32", "A8")
@pytest.mark.parametrize("sample", SAMPLES)
def test_n32_a_post_of_an_earlier_release_is_sent_again_as_that_release_built_it(
    server: FaultServer, left: Callable[..., TaskRun], sample: Any
) -> None:
    assert run(kickoff(**sample["arguments"]), left(sample["record"], sample["arguments"])) == "k-1"
    [sent] = server.sent(POST)
    assert sent.json == sample["body"]
    assert sent.headers["idempotency-key"] == sample["record"]["idempotency_key"]


@pytest.mark.row("N32")
@pytest.mark.parametrize("known", [{"kickoff_id": "k-1"}, {}], ids=["started", "unknown"])
def test_n32_what_another_release_adds_makes_no_other_request(
    server: FaultServer, left: Callable[..., TaskRun], known: Any
) -> None:
    sample = SAMPLES[0].values[0]
    record = {**sample["record"], **known, "added": OF_ANOTHER_RELEASE}
    assert run(kickoff(**sample["arguments"]), left(record, sample["arguments"])) == "k-1"
    added = [request.json["meta"]["airflow"] for request in server.sent(POST)]
    assert added == ([] if known else [OF_ANOTHER_RELEASE["airflow"]])
    assert not server.sent("POST /stop/k-1")


@pytest.mark.row("N32")
def test_n32_a_post_that_is_sent_again_is_the_same(server: FaultServer) -> None:
    server.on(POST, NoReply(RESET), {"kickoff_id": "k-1"})
    task_run = TaskRun()
    with pytest.raises(Exception, match="sends the kickoff again"):
        run(kickoff(), task_run)
    assert run(kickoff(), task_run.retry()) == "k-1"
    first, second = server.sent(POST)
    assert (first.body, first.headers["idempotency-key"]) == (second.body, second.headers["idempotency-key"])


@pytest.mark.row("N32")
def test_n32_a_key_that_belongs_to_another_body_settles_nothing(server: FaultServer) -> None:
    server.on(POST, NoReply(RESET), REUSED)
    task_run = TaskRun()
    with pytest.raises(Exception, match="sends the kickoff again"):
        run(kickoff(), task_run)
    with pytest.raises(CrewTaskFailed, match=r"used before, with another body.*clear this task") as failed:
        run(kickoff(), task_run.retry())
    assert "issing" not in str(failed.value)
    assert "No execution was started" not in str(failed.value)
    with pytest.raises(CrewTaskFailed, match="used before"):
        run(kickoff(), task_run.retry())
    assert len({request.headers["idempotency-key"] for request in server.sent(POST)}) == 1
