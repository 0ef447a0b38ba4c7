"""Sends a large response in pieces as the client reads it, and passes on stored JSON unchanged.

Encoding it as a whole would keep it in memory twice until a slow client has read it, and would block all other threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from crew_service.storage.json_values import JsonText

PIECE = 256 * 1024  # characters


class LargeAnswer(Response):
    media_type = "application/json"

    def __init__(self, content: Any, status_code: int, headers: Mapping[str, str]) -> None:
        self._texts = _texts(content)
        size = sum(map(_bytes, self._texts))
        super().__init__(None, status_code, {**headers, "Content-Length": str(size)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _pieces(self) -> Iterator[bytes]:
        for text in self._texts:
            for begin in range(0, len(text), PIECE):
                yield text[begin : begin + PIECE].encode()


def _texts(content: Any) -> list[str]:
    """Return the JSON in parts: those that are encoded here and, between them, those that were stored."""
    stored: list[str] = []
    mark = uuid4().hex

    def keep(value: Any) -> str:
        if not isinstance(value, JsonText):
            raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")
        stored.append(value.text)
        return mark

    encoded = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=keep)
    parts = encoded.split(f'"{mark}"')
    return [part for pair in zip(parts, [*stored, ""], strict=True) for part in pair]


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
