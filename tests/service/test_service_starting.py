"""What clients meet while a service's crews are loaded."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from crew_client import PLAIN, Client, eventually

from crew_service.http import starting
from crew_service.http.starting import Starting, bind
from scripts.stack.waiting import PATIENCE

TOKEN = "a-token-for-tests-only"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as listening:
        yield listening


def client_of(listener: socket.socket, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(listener.getsockname(), PATIENCE)
    client.sendall(sent)
    return client


def answer_to(listener: socket.socket, sent: bytes) -> bytes:
    with client_of(listener, sent) as client:
        return b"".join(iter(lambda: client.recv(4096), b""))


@pytest.mark.parametrize(("path", "code"), [("livez", 200), ("readyz", 503), ("healthz", 503)])
def test_a_probe_is_answered_at_once(listener: socket.socket, path: str, code: int) -> None:
    url = "http://{}:{}".format(*listener.getsockname())
    with Starting(listener) as service:
        for _ in range(3):
            answer = requests.get(f"{url}/{path}", headers={"X-Long": "x" * 9000}, timeout=PATIENCE)
            assert (answer.status_code, answer.json()["status"] == "ok") == (code, code == 200)
    assert service.waiting == []


def test_other_clients_wait_unread_in_order(listener: socket.socket) -> None:
    requests_of_clients = [b"POST /kickoff HTTP/1.1\r\n", b"", b"GET /livezz HTTP/1.1\r\n", b"GET /status/1"]
    with Starting(listener) as service:
        clients = [client_of(listener, sent) for sent in requests_of_clients]
        with client_of(listener):
            pass  # it leaves before it has sent anything
        assert b'"ok"' in answer_to(listener, b"GET /livez HTTP/1.1\r\n\r\n")
        eventually(lambda: len(service.waiting) == len(clients), "the end of the client that left")
    assert [each.getpeername() for each in service.waiting] == [each.getsockname() for each in clients]
    for waiting, sent in zip(service.waiting, requests_of_clients, strict=True):
        assert not sent or waiting.recv(4096) == sent
    for each in (*clients, *service.waiting):
        each.close()


def test_of_very_many_clients_the_kernel_keeps_the_rest(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "MOST_WAITING", 3)
    with Starting(listener) as service:
        clients = [client_of(listener, b"GET / HTTP/1.1\r\n") for _ in range(5)]
        eventually(lambda: len(service.waiting) == 3, "three clients")
    assert len(service.waiting) == 3
    listener.settimeout(PATIENCE)
    kept = [listener.accept()[0] for _ in range(2)]
    for each in (*clients, *kept, *service.waiting):
        each.close()


def test_probes_are_answered_before_slow_imports() -> None:
    slow = ("fastapi", "uvicorn", "sqlalchemy", "aiohttp", "pydantic", "jinja2")
    listed = "import sys, crew_service.__main__, crew_service.http.starting; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True).stdout.split()
    assert "crew_service.http.starting" in imported
    assert not {*slow} & {*imported}


@pytest.mark.parametrize(
    "words",
    [
        ["work", "--port", "0"],
        ["serve", "--port", "x"],
        ["serve", "--port"],
        ["serve", "--host", ""],
        ["serve", "--host", "192.0.2.1", "--port", "0"],  # not an address of this machine
    ],
)
def test_the_command_itself_says_what_is_wrong(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert starting.started(words) is None
    service = starting.started(["serve", "--port", "0", "--crew", "any"])
    assert service
    with service, service.listener:
        assert answer_to(service.listener, b"GET /livez HTTP/1.1\r\n\r\n")
    assert capsys.readouterr() == ("", "")


def test_room_that_a_client_leaves_is_for_the_next(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "MOST_WAITING", 3)
    with Starting(listener) as service:
        clients = [client_of(listener) for _ in range(5)]
        eventually(lambda: len(service.waiting) == 3, "three clients")
        for each in clients:
            each.close()
        assert b'"ok"' in answer_to(listener, b"GET /livez HTTP/1.1\r\n\r\n")
        eventually(lambda: not service.waiting, "nobody")


def test_clients_stay_queued_in_the_kernel_when_files_run_out() -> None:
    accepted: list[int] = []

    class Full(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            accepted.append(1)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with bind("127.0.0.1", 0) as listening, Full(fileno=os.dup(listening.fileno())) as full:
        with Starting(full) as service, client_of(full):
            eventually(lambda: accepted, "a client")
        assert service.waiting == []
    assert len(accepted) == 1


def test_a_kickoff_during_crew_loading_waits_and_then_starts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "crew.json")  # so the crew is loaded once this test has written it
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    words = ["serve", "--port", str(port), "--crew", "crew.json"]
    environment = {**os.environ, "CREW_SERVICE_TOKEN": TOKEN}
    with (tmp_path / "log").open("w") as log:
        service = subprocess.Popen(
            [sys.executable, "-m", "crew_service", *words], cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
    client = Client(f"http://127.0.0.1:{port}", TOKEN)
    try:
        eventually(lambda: _code(client, "livez") == 200, "a service that lives")
        assert _code(client, "readyz") == 503
        with ThreadPoolExecutor() as threads:
            kickoff = threads.submit(client.kickoff)
            assert _code(client, "livez") == 200
            assert not kickoff.done()
            (tmp_path / "crew.json").write_text(json.dumps(PLAIN))
            client.until(kickoff.result(PATIENCE), "completed")
        eventually(lambda: _code(client, "readyz") == 200, "a service that is ready")
    finally:
        service.kill()
        service.wait(PATIENCE)


def _code(client: Client, path: str) -> int | None:
    try:
        return requests.get(f"{client.url}/{path}", timeout=PATIENCE).status_code
    except requests.ConnectionError:
        return None
