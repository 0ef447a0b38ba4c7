"""Rows S21, S22, S24, S25 and S27: whose a state is, what a list reads, and what a webhook keeps."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import PLAIN, Receiver, Serve, eventually
from sqlalchemy import event
from sqlalchemy.engine import Engine

from crew_service.engine import outbox
from crew_service.engine.crew import Completed, Job, PendingReview, Report, TokensUsed
from crew_service.scripted_crew import ScriptedCrew
from crew_service.storage.integrity import ERROR
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits
ANN, BOB = "ann-token-0123456789", "bob-token-0123456789"
LARGE = 2 * 1024 * 1024


class Flow(ScriptedCrew):
    kind = "flow"


class Talkative(ScriptedCrew):
    """Uses more tokens than 32 bits hold."""

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        report(TokensUsed(2**40))
        return super().run(job, report)


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """What is sent to a database meanwhile."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.row("S21")
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_a_state_hidden_from_the_caller_is_not_found(serve: Serve, dialect: str) -> None:
    client = serve(crew=Flow(PLAIN), dialect=dialect, user_tokens=[("ann", ANN), ("bob", BOB)])
    ann, bob = client.holding(ANN), client.holding(BOB)
    anns, unknown = ann.kickoff(), "0" * 8 + "-0000-4000-8000-" + "0" * 12

    def start(caller: Any, state_id: str) -> int:
        return int(caller.post("/kickoff", {"inputs": {"topic": "x"}, "restoreFromStateId": state_id}).status_code)

    assert [start(caller, anns) for caller in (ann, client, bob)] == [200, 200, 404]
    assert [start(caller, unknown) for caller in (client, bob)] == [200, 404]
    assert len(bob.get("/executions").json()["executions"]) == 0


@pytest.mark.row("S27")
def test_zero_characters_are_refused_and_huge_token_counts_harm_nothing(serve: Serve, postgresql: str) -> None:
    client = serve(crew=Talkative(PLAIN), db=postgresql)
    done = client.until(client.kickoff(), "completed")
    assert done["result"]["output"] == "All on AI"
    flow = serve(crew=Flow(PLAIN), db=postgresql)
    body = {"inputs": {"topic": "x"}, "restoreFromStateId": "a\0b"}
    assert flow.post("/kickoff", body).status_code == 400
    answer = {"flow_id": "x", "feedback": "y", "source": "a\0b"}
    assert flow.post("/resume_feedback", answer).status_code == 400


@pytest.mark.row("S22")
def test_lists_read_only_shown_values_and_threads_read_large_statuses(serve: Serve, statements: list[str]) -> None:
    client = serve({**PLAIN, "tasks": [{**PLAIN["tasks"][0], "output": "x" * LARGE}]})
    kickoff_id = client.kickoff()
    assert len(client.until(kickoff_id, "completed")["result"]["output"]) == LARGE
    statements.clear()
    assert len(client.get("/executions").json()["executions"]) == 1
    (listing,) = [each for each in statements if "ORDER BY executions.created_at" in each]
    read = listing.partition("FROM")[0]
    assert not [name for name in ("output", "tasks", "inputs", "meta") if f"executions.{name}" in read]
    assert client.get(f"/statuses?ids={kickoff_id}").json()["statuses"] == {kickoff_id: None}


@pytest.mark.row("S22")
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_a_large_status_is_equal_to_what_the_crew_returned(serve: Serve, dialect: str) -> None:
    text = json.dumps({"\u00fc\U0001f986": ['"', "x" * LARGE]})
    client = serve({"tasks": [{"id": "only_task", "output": text.replace("{", "{ ")}]}, dialect=dialect)
    kickoff_id = client.kickoff()
    eventually(lambda: 'executions{state="completed"} 1' in client.get("/metrics").text, "the end")
    answer = client.get(f"/status/{kickoff_id}")
    assert int(answer.headers["Content-Length"]) == len(answer.content) > LARGE
    said = answer.json()
    if dialect == "spec":
        (task,) = said["result"]["tasks"]
        assert said["result"]["output"] == task["output"] == text.replace("{", "{ ")
    else:
        assert said["result"] == said["last_executed_task"]["output"] == text.replace("{", "{ ")
        assert said["result_json"] == json.loads(text)


@pytest.mark.long
@pytest.mark.row("S22")
@pytest.mark.parametrize("stored", ['"x', '["x"]', '"\\x' + "x" * LARGE + '"'])
def test_a_large_output_that_cannot_be_read_ends_the_execution(serve: Serve, tmp_path: Path, stored: str) -> None:
    client = serve({"tasks": [{"id": "only_task", "output": "x" * LARGE}]})
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    with sqlite3.connect(tmp_path / "service.db", timeout=PATIENCE) as connection:
        connection.execute("UPDATE executions SET output = ?", (stored,))
    connection.close()
    assert client.get(f"/status/{kickoff_id}").json()["error"] == ERROR


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(outbox, "IDLE", 0.02)


def gated(url: str, token: str | None = None) -> dict[str, Any]:
    proof = {"authentication": {"strategy": "bearer", "token": token}} if token else {}
    return {"taskWebhookUrl": url, "humanInputWebhook": {"url": url, **proof}}


@pytest.mark.row("S24")
@pytest.mark.usefixtures("quick_retries")
def test_webhooks_to_one_address_keep_order_despite_differing_credentials(serve: Serve, receiver: Receiver) -> None:
    client = serve()
    receiver.answers = [500, 500, 500]
    kickoff_id = client.kickoff(**gated(f"{receiver.url}/one", "hook-token"))
    client.until(kickoff_id, "pending")
    eventually(lambda: len(receiver.taken) == 5, "three refusals and two webhooks")
    kinds = ["question" if "task_output" in body else "task" for _, _, body in receiver.taken]
    assert kinds == ["task"] * 4 + ["question"]
    assert [headers.get("Authorization") for _, headers, _ in receiver.taken][3:] == [None, "Bearer hook-token"]


@pytest.mark.row("S24")
@pytest.mark.usefixtures("quick_retries")
def test_a_token_wins_over_credentials_in_the_address(serve: Serve, receiver: Receiver) -> None:
    client = serve()
    address = receiver.url.replace("http://", "http://user:password@") + "/one"
    client.kickoff(humanInputWebhook=gated(address, "hook-token")["humanInputWebhook"])
    eventually(lambda: receiver.taken, "the question")
    assert receiver.taken[0][1]["Authorization"] == "Bearer hook-token"


@pytest.mark.row("S25")
@pytest.mark.usefixtures("quick_retries")
def test_a_resent_webhook_keeps_its_id_and_credential_after_completion(
    serve: Serve, receiver: Receiver, terminal: Any, tmp_path: Path
) -> None:
    client = serve(PLAIN, webhook_attempts=1)
    receiver.answers = [500]
    hook = {"url": f"{receiver.url}/events", "events": ["crew_kickoff_completed"]}
    hook["authentication"] = {"strategy": "bearer", "token": "hook-token"}  # type: ignore[assignment]
    client.until(client.kickoff(webhooks=hook), "completed")
    eventually(lambda: "crew_service_webhooks_given_up 1.0" in client.get("/metrics").text, "the dead letter")
    assert "hook-token" not in terminal("webhooks", "list", "--json")
    terminal("webhooks", "resend", "--all")
    eventually(lambda: len(receiver.taken) == 2, "the second try")
    first, second = (headers for _, headers, _ in receiver.taken)
    assert first["Webhook-Id"] == second["Webhook-Id"]
    assert first["Authorization"] == second["Authorization"] == "Bearer hook-token"
    with sqlite3.connect(tmp_path / "service.db") as connection:
        eventually(lambda: not connection.execute("SELECT 1 FROM outbox").fetchone(), "the delivery")
        assert connection.execute("SELECT count(*) FROM dead_letters").fetchone() == (0,)
