"""HTTP by hand: requests as they arrived, byte for byte, and replies that may break every rule."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Event
from typing import Any

SILENCE = "silence"
RESET = "reset"
CLOSE = "close"
KEEP = "keep"


@dataclass(frozen=True)
class Request:
    """What a client sent; ``target`` is the raw text of the request line, the names of ``headers`` in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer, or a part of one.

    :param body: bytes, a text, or anything else as JSON
    :param delay: seconds before the first byte
    :param drip: seconds before each byte of the body
    :param stop_after: how many bytes of the body are sent before ``end``
    :param end: what becomes of the connection: keep, close, reset or silence
    :param interim: the codes of interim responses before it
    """

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drip: float = 0.0
    stop_after: int | None = None
    end: str = KEEP
    interim: tuple[int, ...] = ()

    def bytes(self) -> tuple[bytes, bytes]:
        """Return the head and the body."""
        body = _bytes(self.body)
        json_like = not isinstance(self.body, bytes | str)
        headers = {"Content-Length": str(len(body)), "Content-Type": "application/json" if json_like else "text/plain"}
        headers |= self.headers
        lines = [f"HTTP/1.1 {self.status} {_phrase(self.status)}", *(f"{n}: {v}" for n, v in headers.items())]
        before = "".join(f"HTTP/1.1 {code} {_phrase(code)}\r\nLink: </a.css>\r\n\r\n" for code in self.interim)
        return (before + "\r\n".join([*lines, "", ""])).encode("latin-1"), body


@dataclass(frozen=True)
class NoReply:
    """The request is read, and nothing comes back but the end of the connection, or not even that."""

    end: str = RESET


Answer = Reply | NoReply


def send(connection: socket.socket, answer: Answer, stopped: Event) -> bool:
    """Send an answer; return whether the connection may carry another request."""
    if isinstance(answer, NoReply):
        return _end(connection, answer.end, stopped)
    if _stopped_within(answer.delay, stopped):
        return False
    head, body = answer.bytes()
    body = body if answer.stop_after is None else body[: answer.stop_after]
    if answer.drip:
        connection.sendall(head)
        for position in range(len(body)):
            if _stopped_within(answer.drip, stopped):
                return False
            connection.sendall(body[position : position + 1])
    else:
        connection.sendall(head + body)
    return _end(connection, answer.end, stopped)


def reset(connection: socket.socket) -> None:
    """Close with an RST, as a peer that was killed does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_request(stream: Any) -> Request | None:
    """Read one request; None if the client has closed the connection."""
    line = stream.readline(65536).decode("latin-1").rstrip("\r\n")
    if not line:
        return None
    method, target, _ = line.split(" ", 2)
    headers: dict[str, str] = {}
    while line := stream.readline(65536).decode("latin-1").rstrip("\r\n"):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    body = stream.read(length)
    if len(body) < length:
        raise ValueError("the client has gone away before its request was complete")
    return Request(method, target, headers, body, time.time())


def _end(connection: socket.socket, end: str, stopped: Event) -> bool:
    if end == SILENCE:
        stopped.wait()
    if end == RESET:
        reset(connection)
    return end == KEEP


def _stopped_within(seconds: float, stopped: Event) -> bool:
    return seconds > 0 and stopped.wait(seconds)


def _bytes(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
