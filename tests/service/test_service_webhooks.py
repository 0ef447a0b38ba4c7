"""Row S5 and the shapes of webhooks: the crew never waits for a receiver, which is asked a bounded number of times."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from crew_client import GATED, PLAIN, Client, Receiver, Serve, eventually

from crew_service.engine import outbox
from crew_service.local import running_service
from scripts.stack.waiting import FACTOR, PATIENCE

pytestmark = pytest.mark.waits
SECRET = "hook-secret-0123456789"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(outbox, "IDLE", 0.02)


def undelivered(client: Client) -> float:
    return float(client.get("/metrics").text.split("\ncrew_service_webhooks_waiting ", 1)[1].split("\n", 1)[0])


def urls(receiver: Receiver) -> dict[str, str]:
    return {f"{level}WebhookUrl": f"{receiver.url}/{level}" for level in ("task", "step", "crew")}


def test_every_level_is_sent_in_the_observed_shape(serve: Serve, receiver: Receiver) -> None:
    client = serve(PLAIN)
    kickoff_id = client.kickoff(meta={"run": 7}, **urls(receiver))
    client.until(kickoff_id, "completed")
    eventually(lambda: len(receiver.taken) == 3, "three webhooks")
    (task,), (step,), (crew,) = (receiver.bodies(f"/{level}") for level in ("task", "step", "crew"))
    fields = [
        "name",
        "description",
        "expected_output",
        "summary",
        "agent",
        "output",
        "output_json",
        "kickoff_id",
        "meta",
    ]
    assert sorted(task) == sorted(fields)
    assert (task["name"], task["agent"], task["output"]) == ("only_task", "Writer", "All on AI")
    assert sorted(step) == sorted(["prompt", "thought", "tool", "tool_input", "result", "kickoff_id", "meta"])
    assert sorted(crew) == sorted(["kickoff_id", "result", "result_json", "token_usage", "meta"])
    assert crew["result"] == "All on AI"
    assert all(body["kickoff_id"] == kickoff_id and body["meta"] == {"run": 7} for body in (task, step, crew))
    assert all("Authorization" not in headers for _, headers, _ in receiver.taken)


def test_several_levels_to_one_url_are_all_sent(serve: Serve, receiver: Receiver) -> None:
    client = serve(PLAIN)
    one = f"{receiver.url}/all"
    client.kickoff(taskWebhookUrl=one, stepWebhookUrl=one, crewWebhookUrl=one)
    eventually(lambda: len(receiver.bodies("/all")) == 3, "three webhooks at one address")


def test_a_failed_crew_sends_no_crew_webhook(serve: Serve, receiver: Receiver) -> None:
    client = serve({"tasks": [{"id": "a", "output": "x"}, {"id": "b", "error": "no"}]})
    client.until(client.kickoff(**urls(receiver)), "error")
    eventually(lambda: undelivered(client) == 0, "an empty outbox")
    assert {path for path, _, _ in receiver.taken} == {"/task", "/step"}


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        ({"authentication": {"strategy": "bearer", "token": SECRET}}, f"Bearer {SECRET}"),
        (
            {"authentication": {"strategy": "basic", "username": "ann", "password": "pä:ss"}},
            "Basic " + base64.b64encode("ann:pä:ss".encode()).decode(),
        ),
        ({"authentication": {}}, None),
        ({"authentication": None}, None),
        ({}, None),
    ],
)
def test_a_person_is_asked_with_the_requested_webhook_authentication(
    serve: Serve, receiver: Receiver, hook: dict, expected: str | None
) -> None:
    client = serve()
    kickoff_id = client.kickoff(humanInputWebhook={"url": f"{receiver.url}/ask", **hook}, meta={"run": 7})
    eventually(lambda: receiver.taken, "the question")
    _, headers, body = receiver.taken[0]
    assert headers.get("Authorization") == expected
    assert body == {
        "kickoff_id": kickoff_id,
        "execution_id": kickoff_id,
        "task_id": "draft_task",
        "task_output": "Draft 1 on AI",
        "meta": {"run": 7},
    }


def test_urls_are_not_carried_over_at_resume(serve: Serve, receiver: Receiver) -> None:
    client = serve()
    kickoff_id = client.kickoff(**urls(receiver))
    client.until(kickoff_id, "pending")
    client.resume(kickoff_id, taskWebhookUrl=f"{receiver.url}/later")
    client.until(kickoff_id, "completed")
    eventually(lambda: undelivered(client) == 0, "an empty outbox")
    assert [body["name"] for body in receiver.bodies("/task")] == ["research_task"]
    assert [body["name"] for body in receiver.bodies("/later")] == ["draft_task", "publish_task"]
    assert receiver.bodies("/crew") == []


@pytest.mark.row("S5")
def test_a_webhook_is_retried_until_a_failing_receiver_accepts_it(serve: Serve, receiver: Receiver) -> None:
    client = serve(PLAIN)
    receiver.answers = [500, 503, 404]
    client.until(client.kickoff(crewWebhookUrl=f"{receiver.url}/crew"), "completed")
    eventually(lambda: undelivered(client) == 0, "the delivery")
    assert len(receiver.bodies("/crew")) == 4


@pytest.mark.row("S5")
def test_a_never_accepted_webhook_is_given_up_after_bounded_attempts(serve: Serve, receiver: Receiver) -> None:
    client = serve(PLAIN, webhook_attempts=3)
    receiver.answers = [500] * 50
    client.until(client.kickoff(crewWebhookUrl=f"{receiver.url}/crew"), "completed")
    eventually(lambda: len(receiver.taken) == 3 and undelivered(client) == 0, "giving up")


@pytest.mark.row("S5")
def test_a_down_or_slow_receiver_delays_neither_crews_nor_others(serve: Serve, receiver: Receiver) -> None:
    client = serve(PLAIN, webhook_timeout=10 * PATIENCE)
    slow = Receiver()
    slow.hold.clear()
    try:
        ids = [
            client.kickoff(taskWebhookUrl=f"{slow.url}/slow", stepWebhookUrl="http://127.0.0.1:9/") for _ in range(20)
        ]
        ids.append(client.kickoff(taskWebhookUrl=f"{receiver.url}/task"))
        for kickoff_id in ids:
            client.until(kickoff_id, "completed")
        eventually(lambda: receiver.bodies("/task"), "the other receiver's news")
        assert slow.answered == 0
    finally:
        slow.close()


@pytest.mark.long
@pytest.mark.row("S5")
def test_a_silent_receiver_is_abandoned_after_the_timeout(serve: Serve, receiver: Receiver) -> None:
    receiver.hold.clear()
    client = serve(PLAIN, webhook_timeout=FACTOR, webhook_attempts=2)
    client.kickoff(crewWebhookUrl=f"{receiver.url}/crew")
    eventually(lambda: len(receiver.taken) == 2 and undelivered(client) == 0, "giving up")


@pytest.mark.row("S5")
def test_a_webhook_never_follows_redirects_with_its_credential(serve: Serve, receiver: Receiver) -> None:
    client = serve(webhook_attempts=2)
    other = Receiver()
    try:
        receiver.answers = [f"{other.url}/stolen"] * 2
        authentication = {"strategy": "bearer", "token": SECRET}
        client.kickoff(humanInputWebhook={"url": f"{receiver.url}/ask", "authentication": authentication})
        eventually(lambda: len(receiver.taken) == 2 and undelivered(client) == 0, "giving up")
        assert other.taken == []
    finally:
        other.close()


@pytest.mark.long
@pytest.mark.row("S5")
def test_news_that_was_not_delivered_survives_a_restart(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [500]
    options: dict[str, Any] = {"scenario": PLAIN, "token": "a-token", "db": tmp_path / "kept.db"}
    with running_service(**options, webhook_timeout=5.0) as service:  # its stop waits as long
        client = Client(service.url, service.token)
        receiver.hold.clear()
        client.until(client.kickoff(crewWebhookUrl=f"{receiver.url}/crew"), "completed")
        eventually(lambda: receiver.taken, "the first try")
    receiver.hold.set()
    with running_service(**options):
        eventually(lambda: len(receiver.bodies("/crew")) >= 2, "the next try")


def test_credentials_are_erased_from_the_database_when_the_execution_ends(
    serve: Serve, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    client = serve(GATED)
    hook = {"url": f"{receiver.url}/ask?key={SECRET}", "authentication": {"strategy": "bearer", "token": SECRET}}
    kickoff_id = client.kickoff(humanInputWebhook=hook)
    client.until(kickoff_id, "pending")
    eventually(lambda: receiver.taken, "the question")

    def kept() -> bool:
        return any(SECRET.encode() in path.read_bytes() for path in tmp_path.glob("service.db*"))

    assert kept(), "the credential has to be there while the execution waits"
    assert SECRET not in client.get(f"/status/{kickoff_id}").text
    client.resume(kickoff_id, humanInputWebhook=hook)
    client.until(kickoff_id, "completed")
    eventually(lambda: not kept(), "the erasure")
    assert SECRET not in caplog.text


def test_an_answered_question_is_not_asked_any_more(serve: Serve, receiver: Receiver) -> None:
    client = serve()
    receiver.answers = [500] * 100
    kickoff_id = client.kickoff(humanInputWebhookUrl=f"{receiver.url}/ask")
    client.until(kickoff_id, "pending")
    client.resume(kickoff_id)
    client.until(kickoff_id, "completed")
    assert undelivered(client) == 0
