"""Rows S34 and S39 of webhooks: one bad address holds up nobody else, and no receiver learns of another."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from crew_client import PLAIN, Command, Receiver, Serve, eventually, figure

from crew_service.engine import outbox
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits


@pytest.mark.row("S34")
@pytest.mark.parametrize("url", ["http://[::::]/", "http://a..b/", f"http://{'a' * 64}/"])
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_an_address_that_the_sender_cannot_read_is_refused(serve: Serve, dialect: str, url: str) -> None:
    client = serve(PLAIN, dialect=dialect)
    answer = client.post("/kickoff", {"inputs": {"topic": "AI"}, "crewWebhookUrl": url})
    assert answer.status_code in (400, 422)
    assert "crewWebhookUrl" in answer.text


@pytest.mark.row("S34")
def test_an_option_with_such_an_address_ends_the_start(tmp_path: Path) -> None:
    refused = Command.refused(tmp_path, "--flow-webhook", "http://[::::]/")
    assert refused.returncode == 2
    assert "must begin with http:// or https://" in refused.stderr


@pytest.mark.long
@pytest.mark.row("S34")
@pytest.mark.parametrize(
    "broken", ["url = '\"http://[::::]/\"'", "url = '{broken'", "url = '5'", "authentication = '[1]'"]
)
def test_an_unreadable_stored_address_is_given_up_while_others_leave(
    serve: Serve, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.1)
    client = serve(PLAIN, webhook_attempts=2)
    receiver.answers = [500]
    receiver.hold.clear()
    client.kickoff(crewWebhookUrl=f"{receiver.url}/bad")
    eventually(lambda: receiver.taken, "the first try")
    with sqlite3.connect(tmp_path / "service.db", timeout=PATIENCE) as connection:
        connection.execute(f"UPDATE webhook_queues SET {broken}")
    connection.close()
    receiver.hold.set()
    client.kickoff(crewWebhookUrl=f"{receiver.url}/good")
    eventually(lambda: receiver.bodies("/good"), "another's webhook")
    eventually(lambda: figure(client, "webhooks_given_up") == 1, "giving up")
    assert len(receiver.bodies("/bad")) == 1


@pytest.mark.long
@pytest.mark.row("S34")
def test_a_queue_failing_unexpectedly_is_postponed_while_others_leave(
    serve: Serve, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(PLAIN)
    receiver.answers = [500] * 50
    receiver.hold.clear()
    client.kickoff(crewWebhookUrl=f"{receiver.url}/bad")
    eventually(lambda: receiver.taken, "the first try")
    with sqlite3.connect(tmp_path / "service.db", timeout=PATIENCE) as connection:
        connection.execute("UPDATE outbox SET created_at = 'soon', attempts = 1")
        connection.execute("UPDATE webhook_queues SET due_at = 0")
    connection.close()
    receiver.hold.set()
    client.kickoff(crewWebhookUrl=f"{receiver.url}/good")
    eventually(lambda: receiver.bodies("/good"), "another's webhook")
    eventually(lambda: delays(caplog), "the fault")
    client.kickoff(crewWebhookUrl=f"{receiver.url}/later")
    eventually(lambda: receiver.bodies("/later"), "a later webhook")
    assert delays(caplog) == 1


def delays(caplog: pytest.LogCaptureFixture) -> int:
    return sum("are delayed" in record.getMessage() for record in caplog.records)


@pytest.mark.row("S39")
def test_a_cookie_of_one_receiver_is_never_sent_again(serve: Serve, receiver: Receiver) -> None:
    class Baker(receiver._server.RequestHandlerClass):  # type: ignore[misc, name-defined]
        def end_headers(self) -> None:
            self.send_header("Set-Cookie", "session=of-alice; Path=/")
            super().end_headers()

    receiver._server.RequestHandlerClass = Baker
    client = serve(PLAIN)
    url = receiver.url.replace("127.0.0.1", "localhost")  # for addresses in digits the jar kept none
    client.kickoff(crewWebhookUrl=f"{url}/alice")
    eventually(lambda: receiver.bodies("/alice"), "the first webhook")
    eventually(lambda: figure(client, "webhooks_waiting") == 0, "an empty outbox")
    client.kickoff(crewWebhookUrl=f"{url}/mallory")
    eventually(lambda: receiver.bodies("/mallory"), "the second webhook")
    assert "Cookie" not in receiver.taken[1][1]
