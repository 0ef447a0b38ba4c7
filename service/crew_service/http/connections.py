"""Limits connections: clients must send and read in time, and at the limit, the longest-idle connection is dropped.

Memory for requests is limited, too: at the limit, a client that is not reading its responses is dropped, or else the
one that has been sending longest. unsent.py limits the memory for responses.

None of uvicorn's options does this, so this module overrides what uvicorn keeps private. It is imported only with the
versions of uvicorn in pyproject.toml, with which tests of connections have run.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from enum import Enum
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from crew_service.engine.machine import connections_in
from crew_service.http.unsent import SHARED, Unsent
from crew_service.settings import Settings

HEADER_SECONDS = 10.0  # for a request's headers, for its trailers, and for reading a byte of the response
HEADER_BYTES = 64 * 1024  # of headers and trailers together
MOST_HEADERS = 200
HEADER_OVERHEAD = 128  # bytes of memory per header in addition to its text
HELD_BYTES = 64 * 1024 * 1024  # for all unanswered requests, or more if bodies may be larger
LARGEST_BODIES = 2  # maximum-size bodies for which there is always room
GOODBYE_SECONDS = 2.0  # for a client to read the last response before the connection closes
RESET = struct.pack("ii", 1, 0)  # the value of SO_LINGER
PIPELINED = 32  # requests that may wait for an earlier request's response
TOO_MUCH = "Too much is being sent to this service; try again later."
REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large", 503: b"Unavailable"}


class Arriving(Enum):
    """The part of a request that the parser is reading."""

    NOTHING = "request"
    HEADERS = "headers"
    BODY = "body"


class Held:
    """Counts the bytes of unanswered requests held by the process, oldest first.

    A request is identified by its connection while its headers are arriving, and by its cycle from then on.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest  # bytes of one body: more are read but not kept
        self._most = max(HELD_BYTES, LARGEST_BODIES * largest)
        self._sizes: dict[Any, int] = {}
        self._connections: dict[Any, GuardedProtocol] = {}
        self._total = 0

    def begin(self, cycle: Any, connection: GuardedProtocol, size: int = 0) -> None:
        self._connections[cycle], self._sizes[cycle] = connection, 0
        self.count(cycle, size)

    def add(self, cycle: Any, size: int) -> None:
        """Count more bytes of a request, and drop requests if the total is too large."""
        self.count(cycle, min(size, self._largest - self._sizes.get(cycle, 0)))
        self.has_room()

    def drop_unread(self, cycle: Any) -> None:
        """Discard the unread rest of a body; the application reads no more once it responds."""
        self.count(cycle, -min(len(cycle.body), self._sizes.get(cycle, 0)))
        cycle.body = type(cycle.body)()

    def has_room(self) -> bool:
        """Return whether a request may begin, after dropping others if necessary and possible."""
        while self._total > self._most and (self._drop_unreading() or self._refuse_oldest()):
            pass
        return self._total <= self._most

    def end(self, cycle: Any) -> int:
        """Stop counting a request; return its bytes."""
        self._connections.pop(cycle, None)
        size = self._sizes.pop(cycle, 0)
        self._total -= size
        return size

    def count(self, cycle: Any, size: int) -> None:
        if cycle in self._sizes:
            self._sizes[cycle] += size
            self._total += size

    def _drop_unreading(self) -> bool:
        """Abort the oldest connection that holds at least its share of the bytes and is not reading its responses."""
        share = self._total / len(self._sizes)
        for cycle, each in self._connections.items():
            if self._sizes[cycle] >= share and each.is_unread():
                self.end(cycle)
                each.abort()
                return True
        return False

    def _refuse_oldest(self) -> bool:
        """Refuse the oldest incomplete request."""
        oldest = next((each for cycle, each in self._connections.items() if each.is_incomplete(cycle)), None)
        if oldest:
            oldest.refuse(503, TOO_MUCH)
        return oldest is not None


class GuardedProtocol(HttpToolsProtocol):
    """A protocol that uses the same parser on every machine; it sets `cycle` once a request's headers are complete."""

    header_seconds = HEADER_SECONDS
    room = 10_000
    held = Held(Settings.max_body)
    unsent = Unsent()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app = self._answered(self.app)
        self._timer: asyncio.TimerHandle | None = None
        self._arriving = Arriving.NOTHING
        self._header_bytes = 0
        self._has_chunk_begun = False  # but none of its bytes have arrived; the last chunk has none
        self._trailer_bytes = 0  # all bytes since the body's last one
        self._is_refused = False
        self._answering: Any = None
        self._unread = 0  # bytes of responses not yet read at the last check
        self.active_at = time.monotonic()
        self._expect_headers()
        if len(self.connections) > self.room:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self.active_at = time.monotonic()
        before = self.cycle
        if self._timer is None and self.between_requests():
            self._expect_headers()
        self._trailer_bytes += len(data)
        super().data_received(data)
        if self._is_refused:
            return
        if self.cycle is not before:
            self._stop_timer()
        elif self._arriving is Arriving.HEADERS:
            self._header_bytes += len(data)
        self._limit_headers()
        self.held.add(self if self._arriving is Arriving.HEADERS else self.cycle, len(data))

    def _limit_headers(self) -> None:
        """Limit headers and trailers here, because the application does not get them until they are complete."""
        if not self.between_requests() and (self._arriving is Arriving.NOTHING or not self._trailer_bytes):
            self._stop_timer()
        if self._expects_trailers() and self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._too_slow)
        size = self._header_bytes + (self._trailer_bytes if self._expects_trailers() else 0)
        if self._expected() and size > HEADER_BYTES:
            self.refuse(431, f"The {self._expected()} are larger than {HEADER_BYTES} bytes.")

    def _expects_trailers(self) -> bool:
        return self._arriving is Arriving.BODY and self._has_chunk_begun

    def _expected(self) -> str:
        """Return the name of the part that must arrive soon; empty if there is none."""
        return "trailers" if self._expects_trailers() else "headers" if self._arriving is Arriving.HEADERS else ""

    def on_message_begin(self) -> None:
        if self.pipelined() >= PIPELINED:
            raise Unreadable
        self._arriving = Arriving.HEADERS
        self._header_bytes = self._trailer_bytes = 0
        self.held.begin(self, self)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignore trailers, which arrive after the headers were checked."""
        if self._arriving is not Arriving.HEADERS:
            return
        if len(self.headers) >= MOST_HEADERS:
            self.refuse(431, f"The request has more than {MOST_HEADERS} headers.")
            raise Unreadable
        super().on_header(name, value)
        self.held.count(self, HEADER_OVERHEAD)

    def on_headers_complete(self) -> None:
        size = self.held.end(self)
        if not self.held.has_room():
            self.refuse(503, TOO_MUCH)
            raise Unreadable
        self._arriving, self._has_chunk_begun, self._trailer_bytes = Arriving.BODY, False, 0
        super().on_headers_complete()
        if all(cycle is not self.cycle for cycle, _ in self.pipeline):
            self._answering = self.cycle
        self.held.begin(self.cycle, self, size)

    def on_chunk_header(self) -> None:
        self._has_chunk_begun = True

    def on_body(self, body: bytes) -> None:
        """Handle a body as the server does, but with the code inlined: it may arrive in a million chunks."""
        self._has_chunk_begun, self._trailer_bytes = False, 0
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._arriving = Arriving.NOTHING
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._answering.body = type(self._answering.body)()  # the part that the application has not read
        if self._is_refused:
            self._say_goodbye()
            return
        next_cycle = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        self._answering = next_cycle or self._answering

    def resume_writing(self) -> None:
        self.active_at = time.monotonic()
        self._unread = 0
        super().resume_writing()

    def end_unread(self) -> None:
        """Abort the connection if its client has read nothing since the last call; a close would wait for it."""
        left = self.transport.get_write_buffer_size()
        if self._unread and left >= self._unread:
            self.abort()
        self._unread = left

    def abort(self) -> None:
        """Reset the connection, so that the kernel does not keep the unread data either."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()

    def _answered(self, app: Any) -> Any:
        """Return the application, which from its first response on lets go of what a request holds."""

        async def until_answered(scope: Any, receive: Any, send: Any) -> None:
            cycle = send.__self__

            async def answer(message: Any) -> None:
                self.held.drop_unread(cycle)
                is_first = message["type"] == "http.response.start" and not cycle.disconnected
                if is_first and not scope["state"].get(SHARED):
                    self.unsent.begin(cycle, message["headers"], self.abort)
                await send(message)

            try:
                await app(scope, receive, answer)
            finally:
                self.held.end(cycle)
                self.unsent.end(cycle)

        return until_answered

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._answering is not None:  # the server itself only notifies the last of several requests
            self._answering.disconnected = not self._answering.response_complete
            self.unsent.end(self._answering)
        for each in (self, *(cycle for cycle, _ in self.pipeline)):
            self.held.end(each)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, msg)

    def between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def silent(self) -> bool:
        """Return whether the client must act: send the rest of a request, or read a response."""
        return self.half_sent() or self.is_unread()

    def is_unread(self) -> bool:
        """Return whether the client must read a response."""
        return self.transport.get_write_buffer_size() > 0

    def pipelined(self) -> int:
        """Return the number of requests that are waiting for an earlier request's response."""
        return len(self.pipeline)

    def half_sent(self) -> bool:
        """Return whether a request has only partly arrived or, on a new connection, none has arrived yet."""
        return self._timer is not None or (self.cycle is not None and self.cycle.more_body)

    def is_incomplete(self, cycle: Any) -> bool:
        """Return whether a request's headers or body are still arriving."""
        is_read = (self._arriving, cycle) in ((Arriving.HEADERS, self), (Arriving.BODY, self.cycle))
        return is_read and not self._is_refused and not self.transport.is_closing()

    def _expect_headers(self) -> None:
        self._header_bytes = 0
        self._timer = self.loop.call_later(self.header_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if self.flow.read_paused:  # the application is not reading yet
            self._timer = self.loop.call_later(self.header_seconds, self._too_slow)
        elif expected := self._expected():
            self.refuse(408, f"The {expected} did not arrive within {self.header_seconds:g} seconds.")
        else:
            self.transport.close()

    def _make_room(self) -> None:
        """Drop the longest-idle connection whose client must act.

        If there is none, drop one whose client has sent several requests at once or else one between requests. If there
        is none either, refuse the new connection.
        """
        others = [each for each in self.connections if each is not self and isinstance(each, GuardedProtocol)]
        candidates = [each for each in others if each.silent()]
        candidates = candidates or [each for each in others if each.pipelined()]
        candidates = candidates or [each for each in others if each.between_requests()]
        if candidates:
            min(candidates, key=lambda each: each.active_at).abort()
        else:
            self.transport.write(_answer(503, "Too many connections; try again later."))
            self.transport.close()

    def refuse(self, code: int, detail: str) -> None:
        """Stop reading; respond instead of the server, or let a response in progress finish."""
        if self._is_refused or self.transport.is_closing():
            return
        is_incomplete = self.is_incomplete(self.cycle)
        self._is_refused = True
        self._stop_timer()
        if is_incomplete:
            self.held.end(self.cycle)
            self.cycle.body = type(self.cycle.body)()
        elif self._arriving is Arriving.HEADERS:
            self.held.end(self)
            self.headers.clear()
        if is_incomplete and self._answering is self.cycle and not self.cycle.response_started:
            self.transport.write(_answer(code, detail))
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._say_goodbye()
        elif self.pipelined() >= PIPELINED:
            self.abort()
        elif self._answering is None or self._answering.response_complete:
            self.transport.write(b"" if is_incomplete else _answer(code, detail))
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Keep reading briefly: closing while the client is sending would discard the response it has not read yet."""
        if not self.transport.is_closing():
            self.transport.write_eof()
            self._timer = self.loop.call_later(GOODBYE_SECONDS, self.transport.close)


class Unreadable(Exception):
    """Raised through the parser, which then stops reading from the connection."""


def guarded(settings: Settings, unsent: Unsent) -> type[GuardedProtocol]:
    """Return the protocol with the limits from the settings."""
    return type(
        "Guarded",
        (GuardedProtocol,),
        {
            "header_seconds": settings.header_seconds,
            "room": connections_in(settings.max_connections),
            "held": Held(settings.max_body),
            "unsent": unsent,
        },
    )


def _answer(code: int, detail: str) -> bytes:
    body = json.dumps({"detail": detail}).encode()
    lines = [
        b"HTTP/1.1 %d %s" % (code, REASONS[code]),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
        *([b"retry-after: 2"] if code == 503 else []),
    ]
    return b"\r\n".join([*lines, b"", body])
