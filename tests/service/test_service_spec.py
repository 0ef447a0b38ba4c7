"""Every section of the specification, in the dialect that carries its name."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4

import pytest
from crew_client import PLAIN, SLOW, Client, Serve, an_hour_passes

from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits


@pytest.fixture
def client(serve: Serve) -> Client:
    return serve()


def test_inputs_lists_the_names_that_the_crew_asks_for(client: Client) -> None:
    assert client.get("/inputs").json() == {"inputs": ["topic"], "required": ["topic"], "continues": True, "files": []}


def test_a_reviewed_execution_completes_with_the_results_of_every_task(client: Client) -> None:
    kickoff_id = client.kickoff()
    pending = client.until(kickoff_id, "pending")
    assert pending == {
        "status": "pending",
        "current_task": "draft_task",
        "task_id": "draft_task",
        "task_output": "Draft 1 on AI",
        "progress": {"completed_tasks": 1, "total_tasks": 3},
    }
    answer = client.resume(kickoff_id)
    assert answer.status_code == 200
    assert answer.json()["status"] == "resumed"
    assert "resumed" in answer.json()["message"]
    record = client.until(kickoff_id, "completed")
    assert set(record) == {"status", "result", "execution_time"}
    assert record["result"]["output"] == '{"title": "All on AI"}'
    reported = [(task["task_id"], task["agent"], task["output"]) for task in record["result"]["tasks"]]
    assert reported == [
        ("research_task", "Researcher", "Notes on AI"),
        ("draft_task", "Writer", "Draft 1 on AI"),
        ("publish_task", "Editor", '{"title": "All on AI"}'),
    ]
    assert all(set(task) == {"task_id", "output", "agent", "execution_time"} for task in record["result"]["tasks"])


def test_each_revision_runs_the_task_again_with_its_feedback(client: Client) -> None:
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    for revision, feedback in ((2, "shorter {topic}"), (3, "longer")):
        answer = client.resume(kickoff_id, approve=False, feedback=feedback)
        assert answer.json()["status"] == "retrying"
        record = client.until(kickoff_id, "pending")
        while f"Draft {revision}" not in record["task_output"]:
            record = client.until(kickoff_id, "pending")
        assert record["task_output"] == f"Draft {revision} on AI, after: {feedback}"
        assert record["task_id"] == "draft_task"


def test_a_queued_execution_reads_running_with_the_first_task(serve: Serve) -> None:
    client = serve(SLOW | {"inputs": []}, workers=1)
    client.until(client.kickoff(), "running")
    queued = client.kickoff()
    assert client.status(queued) == {
        "status": "running",
        "current_task": "slow_task",
        "progress": {"completed_tasks": 0, "total_tasks": 1},
    }


def test_a_failed_execution_reports_its_error_and_execution_time(serve: Serve) -> None:
    client = serve({"tasks": [{"id": "t", "seconds": 0.1, "error": "ValueError: bad {topic}"}]})
    record = client.until(client.kickoff("input"), "error")
    assert record["error"] == "ValueError: bad input"
    assert record["execution_time"] >= 0.1


def test_the_execution_time_leaves_out_the_wait_for_a_person(serve: Serve, tmp_path: Path) -> None:
    client = serve({"tasks": [{"id": "draft_task", "seconds": 0.2, "human_input": True, "output": "x"}]})
    began = time.monotonic()
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    an_hour_passes(tmp_path / "service.db")
    client.resume(kickoff_id)
    record = client.until(kickoff_id, "completed")
    assert 0.2 <= record["execution_time"] <= time.monotonic() - began


def test_missing_inputs_are_a_422_that_names_them(serve: Serve) -> None:
    client = serve({**PLAIN, "inputs": ["topic", "audience"]})
    for body in ({}, {"inputs": {}}, {"inputs": None}, {"inputs": {"other": 1}}):
        answer = client.post("/kickoff", body)
        assert (answer.status_code, answer.json()) == (422, {"detail": "Missing inputs: audience, topic"})


@pytest.mark.row("S47")
def test_null_is_an_input_that_was_given(serve: Serve) -> None:
    client = serve({**PLAIN, "inputs": ["topic"]})
    assert client.post("/kickoff", {"inputs": {"topic": None}}).status_code == 200


def test_unknown_fields_are_ignored_and_null_is_absent(client: Client) -> None:
    client.kickoff(more=1, meta=None, taskWebhookUrl=None, humanInputWebhook=None, webhooks={"events": []})


def test_an_unknown_id_is_a_404(client: Client) -> None:
    for some_id in (str(uuid4()), "x", "%00", "a" * 10_000, "ü", "..%2f.."):
        answer = client.get(f"/status/{some_id}")
        assert (answer.status_code, "detail" in answer.json()) == (404, True), some_id


@pytest.mark.row("S2")
def test_resuming_returns_404_if_unknown_and_400_if_not_waiting(client: Client) -> None:
    kickoff_id = client.kickoff()
    assert client.resume(str(uuid4())).status_code == 404
    assert client.resume(kickoff_id, task_id="no_task").status_code == 404
    client.until(kickoff_id, "pending")
    assert client.resume(kickoff_id, task_id="research_task").status_code == 400
    assert client.resume(kickoff_id).status_code == 200
    client.until(kickoff_id, "completed")
    assert client.resume(kickoff_id).status_code == 400


@pytest.mark.row("S2")
def test_resume_of_a_running_execution_is_a_400(serve: Serve) -> None:
    client = serve(SLOW)
    kickoff_id = client.kickoff()
    answer = client.resume(kickoff_id, task_id="slow_task")
    assert answer.status_code == 400
    assert client.status(kickoff_id)["status"] == "running"


@pytest.mark.parametrize("spelling", ["snake", "camel"])
def test_both_spellings_are_read(client: Client, spelling: str) -> None:
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    body = {"execution_id": kickoff_id, "task_id": "draft_task", "human_feedback": "", "is_approve": True}
    if spelling == "camel":
        names = ("executionId", "taskId", "humanFeedback", "isApprove")
        body = dict(zip(names, body.values(), strict=True))
    assert client.post("/resume", body).json()["status"] == "resumed"


def test_stop_ends_a_running_execution_for_good(serve: Serve) -> None:
    client = serve(SLOW)
    kickoff_id = client.kickoff()
    answer = client.post(f"/stop/{kickoff_id}")
    assert (answer.status_code, answer.json()) == (200, {"status": "stopped", "kickoffId": kickoff_id})
    record = client.status(kickoff_id)
    assert (record["status"], record["error"]) == ("error", "Stopped on request")
    again = client.post(f"/stop/{kickoff_id}")
    assert (again.status_code, again.json()) == (400, {"detail": "Cannot stop execution. Current state: error"})
    assert client.status(kickoff_id) == record


def test_stop_ends_a_queued_and_a_waiting_execution(serve: Serve) -> None:
    client = serve(workers=1)
    waiting = client.kickoff()
    client.until(waiting, "pending")
    assert client.post(f"/stop/{waiting}").status_code == 200
    assert client.status(waiting)["status"] == "error"
    assert client.resume(waiting).status_code == 400


def test_stopping_returns_404_if_unknown_and_400_if_completed(serve: Serve) -> None:
    client = serve(PLAIN)
    assert client.post(f"/stop/{uuid4()}").status_code == 404
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    answer = client.post(f"/stop/{kickoff_id}")
    assert (answer.status_code, answer.json()["detail"]) == (400, "Cannot stop execution. Current state: completed")


def test_a_head_request_answers_as_get_without_a_body(client: Client) -> None:
    answer = client.session.head(f"{client.url}/inputs", timeout=PATIENCE)
    assert (answer.status_code, answer.content) == (200, b"")


def test_options_names_the_methods(client: Client) -> None:
    answer = client.session.options(f"{client.url}/inputs", timeout=PATIENCE)
    assert (answer.status_code, answer.headers["Allow"]) == (204, "GET, HEAD")
