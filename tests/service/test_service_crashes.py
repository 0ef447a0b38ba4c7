"""Row S1: a kill -9 loses nothing that was acknowledged."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crew_client import Command, Receiver, eventually

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-20-letters"
SCENARIO = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "first", "agent": "A", "seconds": 0.3, "output": "First on {topic}"},
        {"id": "second", "agent": "B", "seconds": 4.0, "output": "Second on {topic}"},
        {
            "id": "draft_task",
            "agent": "C",
            "human_input": True,
            "output": "Draft {revision}",
            "revised": "Draft {revision}, after: {feedback}",
        },
        {"id": "last", "agent": "D", "output": "All on {topic}"},
    ],
}


@pytest.fixture
def start(command: Callable[..., Command], tmp_path: Path) -> Callable[..., Command]:
    (tmp_path / "crew.json").write_text(json.dumps(SCENARIO))

    def start(*options: str) -> Command:
        return command("--crew", "crew.json", "--token", TOKEN, *options)

    return start


@pytest.mark.row("S1")
def test_queued_running_waiting_and_completed_survive_a_kill(start: Callable[..., Command]) -> None:
    service = start()
    client = service.client(TOKEN)
    completed, waiting = client.kickoff("done"), client.kickoff("wait")
    for kickoff_id in (completed, waiting):
        client.until(kickoff_id, "pending")
    client.resume(completed)
    record = client.until(completed, "completed")
    question = client.status(waiting)
    service.kill()

    service = start("--workers", "1")
    client = service.client(TOKEN)
    assert client.status(completed) == record
    assert client.status(waiting) == question
    running = client.kickoff("run")
    eventually(lambda: client.status(running)["progress"]["completed_tasks"] == 1, "the first task")
    queued = client.kickoff("queue")
    assert client.status(queued)["progress"]["completed_tasks"] == 0
    service.kill()

    client = start().client(TOKEN)
    assert client.status(running)["progress"]["completed_tasks"] >= 1
    for kickoff_id, topic in ((running, "run"), (queued, "queue")):
        client.until(kickoff_id, "pending")
        client.resume(kickoff_id)
        result = client.until(kickoff_id, "completed")["result"]
        assert [task["output"] for task in result["tasks"]] == [
            f"First on {topic}",
            f"Second on {topic}",
            "Draft 1",
            f"All on {topic}",
        ]
    client.resume(waiting, approve=False, feedback="shorter")
    eventually(lambda: client.status(waiting).get("task_output") == "Draft 2, after: shorter", "the revision")


@pytest.mark.long
@pytest.mark.row("S1")
def test_a_running_execution_goes_on_from_its_last_finished_task(
    start: Callable[..., Command], receiver: Receiver
) -> None:
    service = start()
    client = service.client(TOKEN)
    kickoff_id = client.kickoff(stepWebhookUrl=f"{receiver.url}/step")
    eventually(lambda: client.status(kickoff_id)["progress"]["completed_tasks"] == 1, "the first task")
    empty = "\ncrew_service_webhooks_waiting 0.0"
    eventually(lambda: receiver.bodies("/step") and empty in client.get("/metrics").text, "the first step's delivery")
    service.kill()
    start().client(TOKEN).until(kickoff_id, "pending")
    eventually(lambda: len(receiver.bodies("/step")) >= 3, "the other steps")
    assert [body["result"] for body in receiver.bodies("/step")].count("First on AI") == 1


@pytest.mark.row("S1")
def test_every_answered_kickoff_survives_a_kill_in_mid_burst(start: Callable[..., Command]) -> None:
    service = start("--workers", "1")
    client = service.client(TOKEN)
    acknowledged: list[str] = []

    def one(number: int) -> None:
        if number == 60:
            service.process.kill()
        try:
            acknowledged.append(client.holding(TOKEN).kickoff(str(number)))
        except Exception:
            return  # not acknowledged: the service is gone

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(120)))
    service.kill()
    client = start().client(TOKEN)
    assert len(acknowledged) >= 40
    assert {client.get(f"/status/{kickoff_id}").status_code for kickoff_id in acknowledged} == {200}


@pytest.mark.long
@pytest.mark.row("S1")
def test_a_decision_that_was_answered_survives_and_is_applied_once(start: Callable[..., Command]) -> None:
    service = start()
    client = service.client(TOKEN)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    assert client.resume(kickoff_id, approve=False, feedback="shorter").status_code == 200
    service.kill()
    client = start().client(TOKEN)
    assert client.until(kickoff_id, "pending")["task_output"] == "Draft 2, after: shorter"


def test_a_graceful_stop_gives_running_executions_back(start: Callable[..., Command]) -> None:
    service = start()
    client = service.client(TOKEN)
    kickoff_id = client.kickoff()
    eventually(lambda: client.status(kickoff_id)["progress"]["completed_tasks"] == 1, "the first task")
    assert service.stop() == 0
    assert start().client(TOKEN).until(kickoff_id, "pending")["progress"]["completed_tasks"] == 2
