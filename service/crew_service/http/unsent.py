"""Limits the memory used by large responses that clients have not read yet.

At the limit, work that would create another one waits, and the client that has been reading longest is disconnected.
An owner with less than his share does not wait for the others' clients; he may use as much again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from contextvars import ContextVar
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNSENT_BYTES = 64 * 1024 * 1024
READ_SECONDS = 10.0  # how long a client may take to read a response even if others are waiting
SMALL = 32 * 1024  # bytes; smaller responses are not counted, because the number of connections limits them
SHARES = 8  # of the limit: an owner with less than one waits only once twice the limit is used
PAUSE = 0.05  # seconds between checks for room
OWNER: ContextVar[str] = ContextVar("the owner of the request that is answered", default="")
PIECE = 32 * 1024  # bytes of a response written at once; the rest stays in the response, which is shared
SHARED = "is_shared"  # set in the state of a request whose response takes no memory of its own


class Unsent:
    """The large responses that have not been read yet; used only in the event loop."""

    def __init__(self) -> None:
        self._responses: dict[Hashable, _Response] = {}  # oldest first
        self._total = 0
        self._of: Counter[str] = Counter()  # by owner

    def has_room(self) -> bool:
        """Return whether another response may be created for the owner of this request."""
        is_below = self._of[OWNER.get()] * SHARES < UNSENT_BYTES
        return self._total <= UNSENT_BYTES * (2 if is_below else 1)

    async def room(self) -> None:
        """Wait until another response may be created."""
        while not self.has_room():
            oldest, response = next(iter(self._responses.items()))
            if time.monotonic() - response.began > READ_SECONDS:
                self.end(oldest)
                response.abort()
            else:
                await asyncio.sleep(PAUSE)

    def begin(self, key: Hashable, headers: Iterable[tuple[bytes, bytes]], abort: Callable[[], None]) -> None:
        """Count a response; `abort` ends its connection."""
        for name, value in headers:
            if name == b"content-length" and (size := int(value)) > SMALL:
                owner = OWNER.get()
                self._responses[key] = _Response(size, time.monotonic(), abort, owner)
                self._total += size
                self._of[owner] += size

    def end(self, key: Hashable) -> None:
        if response := self._responses.pop(key, None):
            self._total -= response.size
            self._of[response.owner] -= response.size
            if not self._of[response.owner]:
                del self._of[response.owner]


class _Response(NamedTuple):
    size: int
    began: float
    abort: Callable[[], None]
    owner: str


class InPieces:
    """Sends a response body in pieces; before each one, the server waits until the client has caught up."""

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
