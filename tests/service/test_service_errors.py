"""An error that nobody has foreseen is a response in JSON, and the connection goes on."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from crew_client import PLAIN, Client, Serve
from starlette.types import Receive, Scope, Send

from crew_service.http.connections import guarded
from crew_service.http.errors import Answered
from crew_service.http.server import Server
from crew_service.http.starting import bind
from crew_service.http.unsent import Unsent
from crew_service.scripted_crew import ScriptedCrew
from crew_service.settings import Settings
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.slow
MIB = 1024 * 1024


class Broken(ScriptedCrew):
    """Raises when it is asked for its inputs, once it is served."""

    is_served = False
    error: BaseException = LookupError("not foreseen")

    @property
    def inputs(self) -> list[str]:
        if self.is_served:
            raise self.error
        return []

    @inputs.setter
    def inputs(self, names: list[str]) -> None:
        pass


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("dialect", ["spec", "live"])
@pytest.mark.parametrize("error", [LookupError("x"), RuntimeError("x"), OSError("x"), Panic("x")])
def test_an_unforeseen_error_is_a_json_500_keeping_the_connection(
    serve: Serve, dialect: str, error: BaseException
) -> None:
    crew = Broken(PLAIN)
    client = serve(crew=crew, dialect=dialect)
    crew.is_served, crew.error = True, error
    for _ in range(2):
        assert client.get("/inputs").json() == {"detail": "Internal server error"}
    with connected(client) as raw:
        ask = f"GET /inputs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n\r\n".encode()
        for _ in range(2):
            assert answered(raw, ask) == 500


def connected(client: Client) -> socket.socket:
    parts = urlsplit(client.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE)


def answered(raw: socket.socket, ask: bytes) -> int:
    """Send a request on a connection; return the code of its answer in JSON."""
    raw.sendall(ask)
    taken = b""
    while b"\r\n\r\n" not in taken:
        taken += received(raw)
    head, _, body = taken.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length:")[2].split()[0])
    while len(body) < size:
        body += received(raw)
    assert json.loads(body)["detail"] == "Internal server error"
    return int(head.split()[1])


def received(raw: socket.socket) -> bytes:
    part = raw.recv(65536)
    assert part, "the connection ended"
    return part


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    http = guarded(Settings(token="x"), Unsent())
    server = Server(uvicorn.Config(app, http=http, log_config=None, lifespan="off"))
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


async def raises_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    raise LookupError("not foreseen")


async def raises_in_mid_body(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    raise Panic


@pytest.mark.parametrize("app", [raises_at_once, raises_in_mid_body])
def test_an_error_outside_the_application_gives_500_during_the_body(app: Any) -> None:
    with serving(Answered(app)) as url, connected(Client(url, "x")) as raw:
        ask = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % MIB
        assert answered(raw, ask + b"x" * 1000) == 500
        raw.sendall(b"x" * (MIB - 1000))  # the client goes on sending, and sees no reset
        assert answered(raw, ask + b"x" * MIB) == 500
