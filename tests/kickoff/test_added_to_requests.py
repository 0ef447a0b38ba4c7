"""What an operator adds to a request by itself: never part of what names the request, and the same when sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.providers.common.compat.sdk import DAG
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import Connect, TaskRun, die_after_recording, run

from airflow_crew_provider.api.requests import Kickoff
from airflow_crew_provider.compat.task_instance import task_identity
from airflow_crew_provider.compat.version import RELEASE, has_human_in_the_loop
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.kickoff.post_record import Sender, fingerprint
from airflow_crew_provider.kickoff.request import name_of
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.task.store import TaskRecord
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")
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
def left(a_memory: Any, variables: Any) -> Callable[..., TaskRun]:
    """Return a task instance whose first try left a record, in its second one."""

    def left(record: Any, arguments: Any) -> TaskRun:
        task_run = TaskRun(retries=2)
        webhooks = CrewHook().with_credentials(arguments.get("webhooks"))
        stored = {**record, **Sender.of(CrewHook().connection, webhooks).as_dict()}
        task_run.store.set("crew_kickoff", stored)
        of_run = {name: IDENTITY[name] for name in ("dag_id", "run_id")}
        variables.kept[TaskRecord(IDENTITY).part("crew_kickoff", None).earlier_key] = json.dumps({**stored, **of_run})
        return task_run.retry()

    return left


@pytest.mark.row("N32", "A8")
@pytest.mark.parametrize("sample", SAMPLES)
def test_an_earlier_releases_record_is_of_the_same_request(
    server: FaultServer, left: Callable[..., TaskRun], sample: Any
) -> None:
    task_run = left({**sample["record"], "kickoff_id": "k-1"}, sample["arguments"])
    assert run(kickoff(**sample["arguments"]), task_run) == "k-1"
    assert not server.sent(POST)
    assert TaskRecord(IDENTITY).part("crew_kickoff", None).earlier_key == sample["variable"]


@pytest.mark.row("N32", "A8")
@pytest.mark.parametrize("sample", SAMPLES)
def test_an_earlier_releases_post_is_resent_unchanged(
    server: FaultServer, left: Callable[..., TaskRun], sample: Any
) -> None:
    assert run(kickoff(**sample["arguments"]), left(sample["record"], sample["arguments"])) == "k-1"
    [sent] = server.sent(POST)
    assert sent.json == sample["body"]
    assert sent.headers["idempotency-key"] == sample["record"]["idempotency_key"]


@pytest.mark.row("N32")
@pytest.mark.parametrize("known", [{"kickoff_id": "k-1"}, {}], ids=["started", "unknown"])
def test_what_another_release_adds_makes_no_other_request(
    server: FaultServer, left: Callable[..., TaskRun], known: Any
) -> None:
    sample = SAMPLES[0].values[0]
    record = {**sample["record"], **known, "added": OF_ANOTHER_RELEASE}
    assert run(kickoff(**sample["arguments"]), left(record, sample["arguments"])) == "k-1"
    added = [request.json["meta"]["airflow"] for request in server.sent(POST)]
    assert added == ([] if known else [OF_ANOTHER_RELEASE["airflow"]])
    assert not server.sent("POST /stop/k-1")


@pytest.mark.row("N32")
def test_a_post_that_is_sent_again_is_the_same(server: FaultServer) -> None:
    server.on(POST, NoReply(RESET), {"kickoff_id": "k-1"})
    task_run = TaskRun()
    with pytest.raises(Exception, match="sends the kickoff again"):
        run(kickoff(), task_run)
    assert run(kickoff(), task_run.retry()) == "k-1"
    first, second = server.sent(POST)
    assert (first.body, first.headers["idempotency-key"]) == (second.body, second.headers["idempotency-key"])


@pytest.mark.row("N32")
def test_a_key_that_belongs_to_another_body_settles_nothing(server: FaultServer) -> None:
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


@pytest.mark.row("A28", "N32")
def test_a_loop_iteration_is_recorded_without_naming_the_request(server: FaultServer, variables: Any) -> None:
    def started(iteration: int | None) -> Any:
        ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="kickoff", map_index=-1)
        ti.region_id, ti.region_index = UUID(int=7), iteration
        context = {"ti": ti, **({} if iteration is None else {"loop": SimpleNamespace(index=iteration)})}
        identity = task_identity(context)
        named = fingerprint(name_of(Kickoff(inputs={"topic": "AI"}), identity, "crew_default"))
        return identity, TaskRecord(identity).key, named

    (outside, key, named), *inside = (started(each) for each in (None, 0, 1))
    assert outside == IDENTITY
    assert [identity for identity, _, _ in inside] == [
        {**IDENTITY, "region_id": str(UUID(int=7)), "region_index": number} for number in (0, 1)
    ]
    assert len({key, *(each for _, each, _ in inside)}) == 3
    assert {named, *(each for _, _, each in inside)} == {named}


def sent_by(server: FaultServer) -> dict[str, Any]:
    """Return `meta.airflow` of the first kickoff."""
    meta: dict[str, Any] = server.sent(POST)[0].json["meta"]["airflow"]
    return meta


@pytest.mark.row("N32")
@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://airflow.example.com/ui/", "https://airflow.example.com/ui"),
        *(
            (url, None)
            for url in ("", "/ui", "javascript:alert(1)", "https://me:secret@airflow.example.com", "http://[")
        ),
    ],
)
def test_this_airflows_address_is_sent_without_naming_the_request(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, url: str, sent: str | None
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)
    task_run = TaskRun(retries=2)
    die_after_recording(task_run, kickoff())
    assert sent_by(server) == {**IDENTITY, **({"base_url": sent} if sent and RELEASE >= (3, 0) else {})}
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://moved.example.com")
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1, "the execution of the first try is gone on with"


@pytest.mark.row("N32")
@pytest.mark.skipif(not has_human_in_the_loop(), reason="there are no reviews before Airflow 3.1")
@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, None),
        ({"approvals": 2}, {"task_id": "review", "approvals": 2, "named_people": False}),
        ({"assigned_users": ["ann"]}, {"task_id": "review", "approvals": 1, "named_people": True}),
    ],
)
def test_a_restricted_review_is_sent_without_naming_the_request(
    server: FaultServer, asked: dict[str, Any], sent: Any
) -> None:
    from airflow_crew_provider.operators.review import CrewReviewOperator

    with DAG("dag"):
        first, wait = kickoff(), CrewStatusSensor(task_id="wait", kickoff_id="k-1")
        first >> wait >> CrewReviewOperator(task_id="review", pending={}, **asked)
    task_run = TaskRun(retries=2)
    run(first, task_run)
    assert sent_by(server) == {**IDENTITY, **({"review": sent} if sent else {})}
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1
