"""Limits connections: what a client sends and reads arrives in time, and at the limit the idlest one is dropped."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from crew_service.settings import Settings

HEADER_SECONDS = 10.0  # for the first line and all headers of a request, and for a byte of its answer to be read
HEADER_BYTES = 64 * 1024
RESERVED_FILES = 400  # for the database, webhooks going out and crews
RESET = struct.pack("ii", 1, 0)  # as SO_LINGER
PIPELINED = 32  # requests that may wait for the answer to the one before them
PIECE = 32 * 1024  # bytes of an answer that are written at once: what nobody reads stays in the answer, which is shared
REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large", 503: b"Unavailable"}


def room(max_connections: int | None) -> int:
    """Return how many connections may be open at once; by default what the limit on open files leaves."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(files - RESERVED_FILES, files // 2) if files > 0 else 10_000
    return min(max_connections or 10_000, allowed)


class GuardedProtocol(HttpToolsProtocol):
    """One parser, wherever the service is installed: it sets `cycle` once the headers of a request are complete."""

    header_seconds = HEADER_SECONDS
    room = 10_000

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._answering: Any = None
        self._unread = 0  # bytes of answers that were not taken at the last check
        self.active_at = time.monotonic()
        self._expect_headers()
        if len(self.connections) > self.room:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        self.active_at = time.monotonic()
        before = self.cycle
        if self._timer is None and self.between_requests():
            self._expect_headers()
        super().data_received(data)
        if self.cycle is not before:
            self._stop_timer()
        elif self._timer is not None and (self.cycle is None or not self.cycle.more_body):
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES:
                self._refuse(431, f"The headers are larger than {HEADER_BYTES} bytes.")

    def on_message_begin(self) -> None:
        if self.pipelined() >= PIPELINED:
            raise TooManyRequests
        super().on_message_begin()

    def resume_writing(self) -> None:
        self.active_at = time.monotonic()
        self._unread = 0
        super().resume_writing()

    def end_unread(self) -> None:
        """End the connection if its client has taken nothing since the last call; a close would wait for the client."""
        left = self.transport.get_write_buffer_size()
        if self._unread and left >= self._unread:
            self._abort()
        self._unread = left

    def _abort(self) -> None:
        """Reset it, so that the kernel does not keep either what nobody reads."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._answering is not None:  # the server itself tells the last of several requests only
            self._answering.disconnected = not self._answering.response_complete
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def silent(self) -> bool:
        """The client has to act: to send the rest of a request, or to read an answer."""
        return self.half_sent() or self.transport.get_write_buffer_size() > 0

    def pipelined(self) -> int:
        """Requests that wait for the answer to the one before them."""
        return len(self.pipeline)

    def half_sent(self) -> bool:
        """A request has begun to arrive, or never did on a new connection."""
        return self._timer is not None or (self.cycle is not None and self.cycle.more_body)

    def _reads_a_body(self) -> bool:
        """The body of the only request arrives, and its answer has not begun."""
        return not self.pipelined() and self.cycle.more_body and not self.cycle.response_started

    def _expect_headers(self) -> None:
        self._header_bytes = 0
        self._timer = self.loop.call_later(self.header_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if self._header_bytes:
            self._refuse(408, f"The headers did not arrive within {self.header_seconds:g} seconds.")
        else:
            self.transport.close()

    def _make_room(self) -> None:
        """Drop the connection that has been silent longest: of those whose client has to act first.

        Then one whose client has sent several requests at once, then one between requests.
        """
        others = [each for each in self.connections if each is not self and isinstance(each, GuardedProtocol)]
        candidates = [each for each in others if each.silent()]
        candidates = candidates or [each for each in others if each.pipelined()]
        candidates = candidates or [each for each in others if each.between_requests()]
        if candidates:
            min(candidates, key=lambda each: each.active_at)._abort()
        else:
            self._refuse(503, "Too many connections; try again later.")

    def _refuse(self, code: int, detail: str) -> None:
        """Answer in the server's place and close; nothing goes out after an answer has begun."""
        self._stop_timer()
        if not self.transport.is_closing() and (self.between_requests() or self._reads_a_body()):
            self.transport.write(_answer(code, detail))
            if self.cycle is not None:
                self.cycle.disconnected = True
        self.transport.close()


class TooManyRequests(Exception):
    """Raised through the parser, which then reads no more of this connection."""


class InPieces:
    """Hands the body of an answer on in pieces: the server waits before each until its client has read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def in_pieces(message: Message) -> None:
            body = message.get("body", b"")
            for start in range(0, len(body) - PIECE, PIECE):
                await send({**message, "body": body[start : start + PIECE], "more_body": True})
            rest = (len(body) - 1) // PIECE * PIECE if len(body) > PIECE else 0
            await send({**message, "body": body[rest:]} if rest else message)

        await self._app(scope, receive, in_pieces)


def guarded(settings: Settings) -> type[GuardedProtocol]:
    """Return the protocol with these limits."""
    return type(
        "Guarded",
        (GuardedProtocol,),
        {"header_seconds": settings.header_seconds, "room": room(settings.max_connections)},
    )


def _answer(code: int, detail: str) -> bytes:
    body = json.dumps({"detail": detail}).encode()
    head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (code, REASONS[code], len(body)) + body
