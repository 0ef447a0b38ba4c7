"""Row S37: the webhooks of one owner, to whatever receivers, never hold up those of another."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import PLAIN, Client, Command, Receiver, Serve, eventually
from sqlalchemy import insert

from crew_service.engine import names, outbox
from crew_service.storage import webhooks
from crew_service.storage.database import Database
from crew_service.storage.states import State
from crew_service.storage.tables import executions
from scripts.stack.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.row("S37")]
TOKEN = "a-token-of-the-organization"
SECONDS = 5.0  # within which another owner's webhook arrives; sends are given up after ten


@contextlib.contextmanager
def silence() -> Iterator[int]:
    """Listen at every address of this machine, and never answer."""
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen(4096)
        yield listener.getsockname()[1]


def seconds_until_anns_webhook(ann: Client, receiver: Receiver) -> float:
    began = time.monotonic()
    ann.kickoff(taskWebhookUrl=f"{receiver.url}/ann")
    eventually(lambda: receiver.bodies("/ann"), "another owner's webhook")
    return time.monotonic() - began


def store_webhooks(url: str, owner: str, addresses: list[str]) -> None:
    """As if an execution of this owner had sent a webhook to each of these addresses a moment ago."""
    database = Database(url)
    now = database.now()
    with database.writing() as connection:
        for number, address in enumerate(addresses):
            values = {"state": State.COMPLETED, "asked": [], "created_at": now, "due_at": now, "updated_at": now}
            values |= {"id": f"e-{number}", "kickoff_id": f"e-{number}", "owner": owner, "inputs": {}}
            connection.execute(insert(executions).values(values))
            webhooks.post(connection, f"e-{number}", "crew", {"url": address}, {"result": "x"}, now=now)
    database.close()


@pytest.mark.long
@pytest.mark.parametrize("server", ["sqlite", "postgresql"])
def test_1500_silent_addresses_of_one_owner_hold_up_no_other(
    command: Callable[..., Command], receiver: Receiver, request: pytest.FixtureRequest, tmp_path: Path, server: str
) -> None:
    database = str(tmp_path / "service.db") if server == "sqlite" else request.getfixturevalue("postgresql")
    with silence() as port:
        silent = [f"http://127.1.{number // 250}.{number % 250 + 1}:{port}/" for number in range(1500)]
        store_webhooks(database, "mallory", silent)
        service = command("--token", TOKEN, "--db", database, "--user-token", "ann=ann-token-0123456789")
        ann = service.client(TOKEN).holding("ann-token-0123456789")
        assert seconds_until_anns_webhook(ann, receiver) < SECONDS


LARGE = "x" * (outbox.LARGE + 1)  # for every webhook that quotes it


@pytest.mark.long
def test_large_webhooks_to_silent_receivers_delay_nobody_elses(
    command: Callable[..., Command], receiver: Receiver, silent: list[Receiver], tmp_path: Path
) -> None:
    users = [f"--user-token={name}={name}-token-0123456789" for name in ("mallory", "ann")]
    (tmp_path / "plain.json").write_text(json.dumps(PLAIN))
    service = command("--token", TOKEN, "--crew", "plain.json", *users)
    mallory, ann = (service.client(f"{name}-token-0123456789") for name in ("mallory", "ann"))
    seconds_until_anns_webhook(ann, receiver)
    for one in silent:
        mallory.kickoff(LARGE, crewWebhookUrl=one.url)
    eventually(lambda: begun(silent), "a large webhook on its way")
    began = time.monotonic()
    ann.kickoff(LARGE, crewWebhookUrl=f"{receiver.url}/large")
    eventually(lambda: receiver.bodies("/large"), "another's large webhook")
    assert time.monotonic() - began < SECONDS


@pytest.fixture
def silent() -> Iterator[list[Receiver]]:
    """As many as an owner has places for."""
    receivers = [Receiver() for _ in range(outbox.SLOW_PER_OWNER)]
    for one in receivers:
        one.hold.clear()
    yield receivers
    for one in receivers:
        one.close()


def begun(receivers: list[Receiver]) -> int:
    return sum(len(one.taken) for one in receivers)


class SlowNames:
    """Names below `.slow`, which nobody answers for until it is over."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.looked_up: list[str] = []
        self._system = socket.getaddrinfo

    def getaddrinfo(self, host: Any, *args: Any, **options: Any) -> Any:
        if str(host).endswith(".slow"):
            self.looked_up.append(host)
            self.over.wait(PATIENCE)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return self._system(host, *args, **options)


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    slow = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", slow.getaddrinfo)
    yield slow
    slow.over.set()


USERS = [(name, f"{name}-token-0123456789") for name in ("ann", "mallory")]


@pytest.mark.long
def test_slow_names_delay_no_other_owner_and_hold_few_threads(
    serve: Serve, receiver: Receiver, slow_names: SlowNames
) -> None:
    client = serve(PLAIN, user_tokens=USERS, webhook_timeout=0.3)
    mallory, ann = (client.holding(token) for token in ("mallory-token-0123456789", "ann-token-0123456789"))
    for number in range(300):
        mallory.kickoff(crewWebhookUrl=f"http://{number}.slow/")
    eventually(lambda: given_up(client) > 8, "sends that are given up")
    receiver.url = receiver.url.replace("127.0.0.1", "localhost")  # a name, too
    assert seconds_until_anns_webhook(ann, receiver) < SECONDS
    assert len(slow_names.looked_up) == names.THREADS_OF_ONE


@pytest.mark.long
def test_one_slow_name_takes_one_thread_and_fails_late_harmlessly(
    serve: Serve, receiver: Receiver, slow_names: SlowNames, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(PLAIN, webhook_timeout=0.3)
    for number in range(20):
        client.kickoff(crewWebhookUrl=f"http://the-same.slow/{number}")
    eventually(lambda: given_up(client) > 4, "sends that are given up")
    client.kickoff(crewWebhookUrl=receiver.url.replace("127.0.0.1", "localhost") + "/crew")
    eventually(lambda: receiver.bodies("/crew"), "the webhook to another name")
    assert len(slow_names.looked_up) == 1
    slow_names.over.set()
    eventually(lambda: not any(thread.name == "name-look-up" for thread in threading.enumerate()), "its end")
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def given_up(client: Client) -> int:
    """How many sends have failed so far."""
    failed = re.findall(
        r'^crew_service_webhooks_total\{.*"failed".*\} (\d+)', client.get("/metrics").text, re.MULTILINE
    )
    return sum(map(int, failed))


@pytest.mark.long
def test_answering_receivers_never_wait_for_an_owners_silent_ones(serve: Serve, receiver: Receiver) -> None:
    """One that has answered has places that the silent ones cannot take."""
    client = serve(PLAIN, webhook_timeout=10 * PATIENCE)
    client.kickoff(crewWebhookUrl=f"{receiver.url}/first")
    eventually(lambda: receiver.bodies("/first"), "the first webhook")
    with silence() as port:
        for number in range(1, 30):
            client.kickoff(crewWebhookUrl=f"http://127.0.1.{number}:{port}/")
        client.kickoff(crewWebhookUrl=f"{receiver.url}/second")
        eventually(lambda: receiver.bodies("/second"), "the second webhook")


def test_a_receiver_falling_silent_leaves_places_to_its_owners_others(serve: Serve, receiver: Receiver) -> None:
    client = serve(PLAIN, webhook_timeout=10 * PATIENCE)
    with contextlib.closing(Receiver()) as other:
        for each in (receiver, other):
            client.kickoff(crewWebhookUrl=f"{each.url}/first")
            eventually(lambda each=each: each.answered, "the first webhook")
        other.hold.clear()
        for _ in range(20):
            client.kickoff(crewWebhookUrl=f"{other.url}/held")
        eventually(lambda: len(other.bodies("/held")) == outbox.PER_RECEIVER, "all places of the one")
        client.kickoff(crewWebhookUrl=f"{receiver.url}/second")
        eventually(lambda: receiver.bodies("/second"), "the webhook to the other")
