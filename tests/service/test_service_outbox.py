"""Rows S8, S9, S10 and S17 of webhooks: each arrives once and in order, whoever else does not answer."""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import os
import re
import socket
import sqlite3
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
from crew_client import PLAIN, Client, Command, Receiver, Serve, eventually, figure
from stand_in_crew import StandInCrew

from crew_service.engine import outbox
from crew_service.engine.crew import Completed, Job, Report, StepDone, TaskDone, TaskOutput
from crew_service.engine.sending import signature
from crew_service.local import running_service
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-the-organization"
STANDARD = "whsec_" + base64.b64encode(bytes(range(24))).decode()


class Talkative(StandInCrew):
    """Reports as many steps as its input says, each of as many characters."""

    inputs = required = ("steps", "size")

    def run(self, job: Job, report: Report) -> Completed:
        for number in range(job.inputs["steps"]):
            report(StepDone(thought=str(number), result="x" * job.inputs["size"]))
        report(TaskDone(TaskOutput(task_id="only_task", agent="Agent", output="done", execution_time=0.0)))
        return Completed("done")


def talk(client: Client, steps: int, size: int = 1, **webhooks: Any) -> str:
    answer = client.post("/kickoff", {"inputs": {"steps": steps, "size": size}, **webhooks})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["kickoff_id"])


def thoughts(receiver: Receiver, path: str) -> list[int]:
    return [int(body["thought"]) for body in receiver.bodies(path)]


@pytest.fixture
def silent() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.hold.clear()
    yield receiver
    receiver.close()


@pytest.mark.long
@pytest.mark.row("S9")
def test_a_thousand_webhooks_arrive_once_each_in_their_executions_order(serve: Serve, receiver: Receiver) -> None:
    client = serve(crew=Talkative())
    for number in range(20):
        talk(client, 50, stepWebhookUrl=f"{receiver.url}/{number}")
    eventually(lambda: len(receiver.taken) >= 1000 and figure(client, "webhooks_waiting") == 0, "delivery")
    for number in range(20):
        assert thoughts(receiver, f"/{number}") == list(range(50))


@pytest.mark.row("S9")
def test_an_executions_later_webhooks_wait_for_a_retried_one(
    serve: Serve, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.1)
    client = serve(crew=Talkative())
    receiver.answers = [200, 500, 503, 200, 500]
    talk(client, 8, stepWebhookUrl=f"{receiver.url}/step")
    eventually(lambda: len(receiver.taken) == 11 and figure(client, "webhooks_waiting") == 0, "delivery")
    assert thoughts(receiver, "/step") == [0, 1, 1, 1, 2, 2, 3, 4, 5, 6, 7]


@pytest.mark.long
@pytest.mark.row("S9")
def test_a_graceful_stop_in_mid_delivery_sends_nothing_twice(receiver: Receiver, tmp_path: Path) -> None:
    options: dict[str, Any] = {"crew": Talkative(), "token": TOKEN, "db": tmp_path / "kept.db"}
    for _ in range(3):
        with running_service(**options) as service:
            client = Client(service.url, TOKEN)
            client.until(talk(client, 100, stepWebhookUrl=f"{receiver.url}/step"), "completed")
    deliver_the_rest(options)
    assert len(receiver.taken) == 300


@pytest.mark.long
@pytest.mark.row("S59")
def test_a_graceful_stop_waits_for_a_receiver_that_answers_slowly(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "GRACE", 0.1)
    options: dict[str, Any] = {"crew": Talkative(), "token": TOKEN, "db": tmp_path / "kept.db"}
    receiver.hold.clear()
    with running_service(**options) as service:
        talk(Client(service.url, TOKEN), 1, stepWebhookUrl=f"{receiver.url}/step")
        eventually(lambda: receiver.taken, "the delivery")
        answering = threading.Timer(1.5, receiver.hold.set)
        answering.start()
    answering.join()
    deliver_the_rest(options)
    assert len(receiver.taken) == 1


@pytest.mark.row("S59")
def test_a_graceful_stop_waits_until_a_delivery_can_be_recorded(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"crew": Talkative(), "token": TOKEN, "db": tmp_path / "kept.db"}
    receiver.hold.clear()
    with running_service(**options) as service, contextlib.closing(sqlite3.connect(options["db"])) as other:
        talk(Client(service.url, TOKEN), 1, stepWebhookUrl=f"{receiver.url}/step")
        eventually(lambda: receiver.taken, "the delivery")
        other.execute("CREATE TRIGGER full BEFORE DELETE ON outbox BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
        other.commit()
        receiver.hold.set()
        eventually(lambda: "the disk is full" in caplog.text, "the refusal")
        mending = threading.Timer(1.5, without_trigger, [options["db"]])
        mending.start()
    mending.join()
    deliver_the_rest(options)
    assert len(receiver.taken) == 1


def deliver_the_rest(options: dict[str, Any]) -> None:
    """Start the service again, until it has nothing left to deliver."""
    with running_service(**options) as service:
        client = Client(service.url, TOKEN)
        eventually(lambda: figure(client, "webhooks_waiting") == 0, "delivery")


def without_trigger(database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database, timeout=PATIENCE)) as connection:
        connection.execute("DROP TRIGGER full")
        connection.commit()


@pytest.mark.row("S9")
def test_a_crash_repeats_at_most_what_was_under_way(command: Callable[..., Command], receiver: Receiver) -> None:
    receiver.hold.clear()
    service = command("--token", TOKEN)
    client = service.client(TOKEN)
    client.until(client.kickoff(stepWebhookUrl=f"{receiver.url}/s"), "pending")
    eventually(lambda: receiver.taken, "the first webhook")
    service.kill()
    receiver.hold.set()
    client = command("--token", TOKEN).client(TOKEN)
    eventually(lambda: figure(client, "webhooks_waiting") == 0, "delivery")
    assert [body["result"][:5] for body in receiver.bodies("/s")] == ["Notes", "Notes", "Outli", "Draft"]


@pytest.mark.row("S10")
def test_a_silent_receiver_with_600_webhooks_delays_no_others(
    serve: Serve, receiver: Receiver, silent: Receiver
) -> None:
    client = serve(crew=Talkative(), webhook_timeout=10 * PATIENCE)
    for _ in range(60):
        client.until(talk(client, 10, stepWebhookUrl=f"{silent.url}/step"), "completed")
    for number in range(5):
        talk(client, 3, stepWebhookUrl=f"{receiver.url}/{number}")
    eventually(lambda: len(receiver.taken) == 15, "the others' webhooks")
    assert silent.answered == 0
    assert len(silent.taken) == 1


@pytest.mark.long
@pytest.mark.row("S10")
def test_ten_thousand_webhooks_wait_in_the_database_not_in_memory(
    command: Callable[..., Command], receiver: Receiver, silent: Receiver, tmp_path: Path
) -> None:
    service = command("--token", TOKEN)
    client = service.client(TOKEN)
    kickoff_id = client.kickoff(stepWebhookUrl=f"{silent.url}/step")
    client.until(kickoff_id, "pending")
    before = memory(service)
    multiply(tmp_path / "crew-service.db", 10_000, body="x" * 20_000)
    client.kickoff(stepWebhookUrl=f"{receiver.url}/step")
    eventually(lambda: len(receiver.taken) == 3, "the others' webhooks")
    assert memory(service) - before < 60_000_000  # 200 MB wait


def memory(service: Command) -> int:
    return int(Path(f"/proc/{service.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_memory(service: Command) -> int:
    """Return how much the process has held at any moment so far."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def multiply(database: Path, number: int, body: str) -> None:
    """As if as many executions had each sent a webhook to the one receiver that there is."""
    with sqlite3.connect(database, timeout=PATIENCE) as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO webhook_queues"
            " (id, execution_id, receiver, url, due_at) SELECT 'q' || i, execution_id, receiver, url, 0"
            " FROM n, (SELECT * FROM webhook_queues LIMIT 1)",
            (number,),
        )
        connection.execute(
            "INSERT INTO outbox (key, queue_id, execution_id, kind, body, size, attempts, created_at)"
            " SELECT id, id, execution_id, 'step', ?, ?, 0, 0 FROM webhook_queues WHERE id LIKE 'q%'",
            (json.dumps(body), len(body)),
        )
    connection.close()


@pytest.mark.row("S10")
def test_given_up_webhooks_are_kept_and_resendable_from_the_terminal(
    serve: Serve, receiver: Receiver, tmp_path: Path, terminal: Callable[..., str]
) -> None:
    client = serve(PLAIN, webhook_attempts=1)
    receiver.answers = [500]
    url = receiver.url.replace("//", "//ann:hook-password@") + "/crew?key=7"
    kickoff_id = client.kickoff(crewWebhookUrl=url)
    eventually(lambda: figure(client, "webhooks_given_up") == 1, "giving up")
    listed = terminal("webhooks", "list")
    assert all(word in listed for word in (kickoff_id, "crew", "HTTP 500", f"{receiver.url}/crew?key=7"))
    (letter,) = json.loads(terminal("webhooks", "list", "--json"))
    eventually(lambda: b"hook-password" not in stored(tmp_path), "the erasure of the password")
    assert "1 webhook will be sent again" in terminal("webhooks", "resend", letter["id"])
    eventually(lambda: len(receiver.bodies("/crew?key=7")) == 2, "the second delivery")
    first, second = receiver.taken
    assert first[2] == second[2]
    assert "No webhooks have been abandoned." in terminal("webhooks", "list")
    assert "There is no abandoned webhook" in terminal("webhooks", "resend", letter["id"], code=1)


def test_every_given_up_webhook_can_be_sent_again_at_once(
    serve: Serve, receiver: Receiver, terminal: Callable[..., str]
) -> None:
    client = serve(crew=Talkative(), webhook_attempts=1)
    receiver.answers = [500] * 5
    talk(client, 5, stepWebhookUrl=f"{receiver.url}/step")
    eventually(lambda: figure(client, "webhooks_given_up") == 5, "giving up")
    assert "5 webhooks will be sent again" in terminal("webhooks", "resend", "--all")
    eventually(lambda: len(receiver.taken) == 10, "the second delivery")
    assert sorted(thoughts(receiver, "/step")[5:]) == list(range(5))


def test_an_unreadable_given_up_webhook_does_not_block_resending_others(
    serve: Serve, receiver: Receiver, tmp_path: Path, terminal: Callable[..., str]
) -> None:
    client = serve(crew=Talkative(), webhook_attempts=1)
    receiver.answers = [500] * 5
    kickoff_id = talk(client, 5, stepWebhookUrl=f"{receiver.url}/step")
    eventually(lambda: figure(client, "webhooks_given_up") == 5, "giving up")
    with sqlite3.connect(tmp_path / "service.db", timeout=PATIENCE) as connection:
        connection.execute("UPDATE dead_letters SET url = '{broken', hook = '{broken' WHERE id = 2")
        connection.execute("UPDATE dead_letters SET hook = '[1]' WHERE id = 3")
        connection.execute("UPDATE dead_letters SET body = '{broken' WHERE id = 4")
    connection.close()
    listed = client.get(f"/view?id={kickoff_id}")
    assert (listed.status_code, "UNREADABLE" in listed.text) == (200, True)
    assert "UNREADABLE" in terminal("webhooks", "list", "--json")
    assert "4 webhooks will be sent again" in terminal("webhooks", "resend", "--all")
    eventually(lambda: {0, 2, 4} <= {*thoughts(receiver, "/step")[5:]}, "the second delivery")
    eventually(lambda: b"{broken" in receiver.raw, "what is no JSON any more, as it was stored")


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("service.db*"))


def test_an_address_password_is_erased_with_its_last_delivery(serve: Serve, receiver: Receiver, tmp_path: Path) -> None:
    client = serve(PLAIN)
    url = receiver.url.replace("//", "//ann:hook-password@") + "/crew"
    client.until(client.kickoff(crewWebhookUrl=url), "completed")
    eventually(lambda: receiver.taken, "the delivery")
    assert receiver.taken[0][1]["Authorization"].startswith("Basic ")
    eventually(lambda: b"hook-password" not in stored(tmp_path), "the erasure")


@pytest.mark.long
@pytest.mark.row("S8")
def test_an_unstorable_delivery_is_not_resent_repeatedly(
    serve: Serve, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(PLAIN)
    receiver.hold.clear()
    client.until(client.kickoff(crewWebhookUrl=f"{receiver.url}/crew"), "completed")
    eventually(lambda: receiver.taken, "the delivery")
    other = sqlite3.connect(tmp_path / "service.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # what a full disk is too: nothing can be written
    logged = len(caplog.records)
    receiver.hold.set()
    try:
        time.sleep(2)  # the fault was seen in as many seconds
        assert len(receiver.taken) == 1
        assert len(caplog.records) - logged < 10
    finally:
        other.execute("ROLLBACK")
        other.close()
    eventually(lambda: figure(client, "webhooks_waiting") == 0, "the settlement")
    assert len(receiver.taken) == 1


OUTPUT = 10_000_000  # characters


@contextlib.contextmanager
def deaf() -> Iterator[tuple[str, list[socket.socket]]]:
    """Accept connections and read nothing from them."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(listener.accept()[0])

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", accepted
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()
    for connection in accepted:
        connection.close()


@pytest.mark.long
@pytest.mark.row("S17")
def test_large_outputs_for_a_silent_receiver_stay_in_the_database(
    command: Callable[..., Command], silent: Receiver, tmp_path: Path
) -> None:
    large = {"inputs": ["topic"], "tasks": [{"id": "t", "output": "{topic}" + "x" * OUTPUT}]}
    (tmp_path / "large.json").write_text(json.dumps(large))
    service = command("--token", TOKEN, "--crew", "large.json", fresh=True)
    client = service.client(TOKEN)
    idle = memory(service)
    for number in range(1, 6):
        client.kickoff(taskWebhookUrl=f"{silent.url}/task")
        eventually(lambda n=number: figure(client, 'executions{state="completed"}') == n, "the end")  # without outputs
    eventually(lambda: silent.taken, "the first webhook")
    eventually(lambda: memory(service) - idle < 6 * OUTPUT, "an end of what was held")
    assert most_memory(service) - idle < 25 * OUTPUT  # one write of an execution, and one delivery


@pytest.mark.row("S17")
def test_many_non_reading_receivers_hold_no_large_body_in_memory(serve: Serve) -> None:
    large = {"inputs": ["topic"], "tasks": [{"id": "t", "output": "{topic}" + "x" * OUTPUT}]}
    client = serve(large, webhook_timeout=10 * PATIENCE)
    with contextlib.ExitStack() as stack:
        receivers = [stack.enter_context(deaf()) for _ in range(outbox.SLOW_PER_OWNER)]
        stack.callback(tracemalloc.stop)
        tracemalloc.start()
        for url, _ in receivers:
            client.kickoff(taskWebhookUrl=f"{url}/task")
        eventually(lambda: all(accepted for _, accepted in receivers), "a webhook on its way to each")
        eventually(lambda: tracemalloc.get_traced_memory()[0] < OUTPUT, "an end of what was held")


@pytest.mark.parametrize("server", ["sqlite", "postgresql"])
def test_a_large_webhook_arrives_whole_and_signed(
    serve: Serve, receiver: Receiver, request: pytest.FixtureRequest, tmp_path: Path, server: str
) -> None:
    text = "\u00fc\n\U0001f986" + "x" * (2 * outbox.LARGE)
    options = {} if server == "sqlite" else {"db": request.getfixturevalue("postgresql")}
    client = serve({**PLAIN, "tasks": [{**PLAIN["tasks"][0], "output": text}]}, webhook_secret=STANDARD, **options)
    receiver.raw.clear()
    client.kickoff(crewWebhookUrl=f"{receiver.url}/crew")
    eventually(lambda: receiver.taken, "the delivery")
    (_, headers, body), raw = receiver.taken[0], receiver.raw[0]
    assert body["result"] == text
    standardwebhooks.Webhook(STANDARD).verify(raw, dict(headers))
    assert "Transfer-Encoding" not in headers


def test_a_large_webhook_withdrawn_midway_is_neither_finished_nor_retried(serve: Serve, receiver: Receiver) -> None:
    large = {"tasks": [{"id": "draft_task", "output": "x" * OUTPUT, "human_input": True}]}
    client = serve(large, webhook_timeout=10 * PATIENCE)
    with deaf() as (url, accepted):
        kickoff_id = client.post("/kickoff", {"inputs": {}, "humanInputWebhookUrl": url}).json()["kickoff_id"]
        eventually(lambda: accepted, "the webhook on its way")
        client.resume(kickoff_id)
        client.until(kickoff_id, "completed")
        said = drained(accepted[0])
        assert 0 < len(said) < OUTPUT
        eventually(lambda: figure(client, "webhooks_waiting") == 0, "the end of the delivery")
        assert len(accepted) == 1


def test_a_large_webhook_withdrawn_midway_contains_no_other_users_text(serve: Serve) -> None:
    large = {"inputs": ["topic"], "tasks": [{"id": "draft_task", "output": "{topic}" * 600_000, "human_input": True}]}
    users = [(name, f"{name}s-token-0123456789") for name in ("alice", "bob")]
    client = serve(large, webhook_timeout=10 * PATIENCE, user_tokens=users)
    alice, bob = (client.holding(token) for _, token in users)
    with deaf() as (bobs, to_bob), deaf() as (alices, to_alice):
        kickoff_id = bob.kickoff("text of bob   ", humanInputWebhookUrl=bobs)
        eventually(lambda: to_bob, "the webhook on its way")
        bob.resume(kickoff_id)
        alice.kickoff("text of alice ", humanInputWebhookUrl=alices)
        eventually(lambda: to_alice, "a webhook of the other user")
        said = drained(to_bob[0])
    assert b"text of bob" in said
    assert b"text of alice" not in said


def test_ending_a_withdrawn_webhooks_delivery_loses_no_other_webhook(
    serve: Serve, receiver: Receiver, silent: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="crew_service.engine.outbox")
    client = serve()
    withdrawn = client.kickoff(humanInputWebhookUrl=silent.url)
    eventually(lambda: silent.taken, "the webhook on its way")
    client.post(f"/stop/{withdrawn}")
    receiver.answers = [503]
    receiver.hold.clear()
    client.kickoff(humanInputWebhookUrl=receiver.url)
    eventually(lambda: receiver.taken, "the other webhook on its way")
    silent.hold.set()
    eventually(lambda: "webhook delivered" in caplog.text, "the end of the first delivery")
    assert figure(client, "webhooks_waiting") == 1
    receiver.hold.set()
    eventually(lambda: len(receiver.taken) == 2, "the second try")


def test_a_withdrawn_webhooks_failed_last_try_never_delays_the_next(
    serve: Serve, receiver: Receiver, terminal: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(webhook_attempts=1)
    receiver.answers = [500, 500]
    kickoff_id = client.kickoff(taskWebhookUrl=receiver.url)
    client.until(kickoff_id, "pending")
    eventually(lambda: figure(client, "webhooks_given_up") == 1, "giving up")
    receiver.hold.clear()
    client.resume(kickoff_id, approve=False, humanInputWebhookUrl=receiver.url)
    eventually(lambda: len(receiver.taken) == 2, "the question on its way")
    terminal("webhooks", "resend", "--all")  # to the same queue, which therefore outlives the question
    client.resume(client.get("/executions").json()["executions"][0]["kickoff_id"])
    receiver.hold.set()
    eventually(lambda: len(receiver.taken) == 3, "the next webhook")
    assert receiver.taken[2][2] == receiver.taken[0][2]
    assert figure(client, "webhooks_given_up") == 0
    assert "are delayed" not in caplog.text


def drained(connection: socket.socket) -> bytes:
    """Read all that comes before the connection is closed."""
    connection.settimeout(PATIENCE)
    said = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            said += piece
    return bytes(said)


def test_a_webhook_is_signed_where_a_secret_is_given(serve: Serve, receiver: Receiver) -> None:
    client = serve(PLAIN, webhook_secret="s" * 32)
    receiver.raw.clear()
    client.kickoff(crewWebhookUrl=f"{receiver.url}/crew")
    eventually(lambda: receiver.taken, "the delivery")
    _, headers, _ = receiver.taken[0]
    signed = signature("s" * 32, receiver.raw[0], int(headers["X-CrewAI-Timestamp"]), headers["Webhook-Id"])
    assert signed.items() <= headers.items()
    assert "Webhook-Signature" not in headers
    assert abs(int(headers["X-CrewAI-Timestamp"]) - time.time()) < 60


@pytest.mark.parametrize("secret", [STANDARD, STANDARD.rstrip("=")])
def test_standard_webhooks_secrets_sign_both_ways_and_retries_keep_ids(
    serve: Serve, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """Checked as receivers do, by the package that the standard publishes."""
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.02)
    client = serve({**PLAIN, "tasks": [{**PLAIN["tasks"][0], "output": "on ducks ü"}]}, webhook_secret=secret)
    receiver.raw.clear()
    receiver.answers = [500]
    client.kickoff(crewWebhookUrl=f"{receiver.url}/crew")
    eventually(lambda: len(receiver.taken) >= 2, "the second delivery")
    assert len({headers["Webhook-Id"] for _, headers, _ in receiver.taken}) == 1
    for (_, headers, _), raw in zip(receiver.taken, receiver.raw, strict=True):
        standardwebhooks.Webhook(secret).verify(raw, dict(headers))
        signed = hmac.new(secret.encode(), f"{headers['X-CrewAI-Timestamp']}.".encode() + raw, "sha256").hexdigest()
        assert headers["X-CrewAI-Signature"] == f"sha256={signed}"
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(secret).verify(raw + b" ", dict(headers))


@pytest.mark.parametrize("option", ["--webhook-secret", "--flow-webhook-secret"])
@pytest.mark.parametrize("secret", ["whsec_", "whsec_no base64!"])
def test_an_invalid_standard_webhooks_secret_is_refused_at_the_start(tmp_path: Path, option: str, secret: str) -> None:
    refused = Command.refused(tmp_path, option, secret)
    assert refused.returncode != 0
    assert "a webhook secret must be base64" in refused.stderr
    assert secret not in refused.stderr.replace("After whsec_", "")


def test_two_services_on_one_database_deliver_each_webhook_once(
    command: Callable[..., Command], postgresql: str, receiver: Receiver, tmp_path: Path
) -> None:
    services = [command("--token", TOKEN, "--db", postgresql) for _ in range(2)]
    clients = [service.client(TOKEN) for service in services]
    threads = [
        threading.Thread(target=lambda c=c: [c.kickoff(stepWebhookUrl=f"{receiver.url}/s") for _ in range(30)])
        for c in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: len(receiver.taken) >= 180, "delivery")
    eventually(lambda: figure(clients[0], "webhooks_waiting") == 0, "an empty outbox")
    by_execution: dict[str, list[str]] = {}
    for body in receiver.bodies("/s"):
        by_execution.setdefault(body["kickoff_id"], []).append(re.split(r"\W", body["result"])[0])
    assert len(by_execution) == 60
    assert all(words == ["Notes", "Outline", "Draft"] for words in by_execution.values())
