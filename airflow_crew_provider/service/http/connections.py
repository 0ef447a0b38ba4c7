"""Limits connections: headers arrive in time and within a size, and at the limit the idlest connection is dropped."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from airflow_crew_provider.service.settings import Settings

HEADER_SECONDS = 10.0  # for the first line and all headers of a request
HEADER_BYTES = 64 * 1024
RESERVED_FILES = 400  # for the database, webhooks going out and crews
REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large", 503: b"Unavailable"}


def room(max_connections: int | None) -> int:
    """Return how many connections may be open at once; by default what the limit on open files leaves."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(files - RESERVED_FILES, files // 2) if files > 0 else 10_000
    return min(max_connections or 10_000, allowed)


class GuardedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """The server's own protocol; both of its parsers set `cycle` once the headers of a request are complete."""

    header_seconds = HEADER_SECONDS
    room = 10_000

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
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

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def half_sent(self) -> bool:
        """A request has begun to arrive, or never did on a new connection."""
        return self._timer is not None or (self.cycle is not None and self.cycle.more_body)

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
        """Drop the connection that has been silent longest: half-sent requests first, then those between requests."""
        others = [each for each in self.connections if each is not self and isinstance(each, GuardedProtocol)]
        candidates = [each for each in others if each.half_sent()]
        candidates = candidates or [each for each in others if each.between_requests()]
        if candidates:
            min(candidates, key=lambda each: each.active_at).transport.abort()
        else:
            self._refuse(503, "Too many connections; try again later.")

    def _refuse(self, code: int, detail: str) -> None:
        """Answer in the server's place and close; nothing goes out after an answer has begun."""
        self._stop_timer()
        if not self.transport.is_closing() and self.between_requests():
            self.transport.write(_answer(code, detail))
        self.transport.close()


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
