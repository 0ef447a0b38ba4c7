"""Parses a request body into a plain JSON object that can be stored and resent, or refuses it with one sentence."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterable
from itertools import accumulate
from typing import Any

import anyio
from fastapi import HTTPException, Request

MAX_DEPTH = 64
DRAINED = 32  # read a body up to this multiple of its limit, because a peer reads no response while it is sending
ESCAPE = re.compile(rb"\\.", re.DOTALL)  # outside a string, this is not JSON, and the decoder stops
STRING = re.compile(rb'"[^"]*"?')  # or an unterminated one, to avoid retrying from each quote in it
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
LEVELS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
SHOWN = 80  # characters of a caller's text that a response quotes


class BadBody(ValueError):
    """The body is not a JSON object that the service can use."""


class _TooLarge(Exception):
    pass


async def read(request: Request, *, limit: int, seconds: float) -> bytes:
    try:
        with anyio.fail_after(seconds):  # `asyncio.wait_for` creates a task, which keeps failed bodies for longer
            return await _collect(request.stream(), limit)
    except TimeoutError:
        raise HTTPException(408, f"The body did not arrive within {seconds:g} seconds.") from None
    except _TooLarge:
        raise HTTPException(413, f"The body is larger than {limit} bytes.") from None


async def _collect(pieces: AsyncIterable[bytes], limit: int) -> bytes:
    """Return the whole body; raise as soon as reading more is pointless."""
    body, size = bytearray(), 0
    async for piece in pieces:
        size += len(piece)
        if size <= limit:
            body += piece
        elif size > DRAINED * limit:
            raise _TooLarge
    if size > limit:
        raise _TooLarge
    return bytes(body)


def parse(raw: bytes, content_type: str | None) -> dict[str, Any]:
    if content_type is not None and content_type.partition(";")[0].strip().lower() != "application/json":
        raise BadBody(f"The content type must be application/json, not {content_type[:SHOWN]!r}.")
    if _depth(raw) > MAX_DEPTH:
        raise BadBody(f"The body is nested more than {MAX_DEPTH} levels deep.")
    value = _decode(raw)
    if not isinstance(value, dict):
        raise BadBody("The body must be a JSON object.")
    if rb"\u" in raw:
        _check_surrogates(value)
    return value


def _depth(raw: bytes) -> int:
    """Return the nesting depth of lists and objects, before anything is built from them."""
    brackets = STRING.sub(b"", ESCAPE.sub(b"", raw)).translate(None, NO_BRACKETS)
    return max(accumulate(map(LEVELS.__getitem__, brackets)), default=0)


def _decode(raw: bytes) -> Any:
    try:
        return json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise BadBody(f"The body is not valid UTF-8 (byte {error.start}).") from None
    except BadBody:
        raise
    except ValueError as error:
        raise BadBody(f"The body is not valid JSON: {error}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise BadBody(f"The name {_shown(_first_repeated(pairs))} occurs twice in one object.")
    return value


def _first_repeated(pairs: list[tuple[str, Any]]) -> str:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            return name
        names.add(name)
    raise AssertionError("no name is repeated")


def _no_constant(word: str) -> Any:
    raise BadBody(f"{word} is not valid JSON.")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadBody(f"The number {text[:SHOWN]} is out of range.")
    return value


def _check_surrogates(value: Any) -> None:
    """Refuse text that cannot be encoded as UTF-8; only escapes can produce it, because the body itself is UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        around = error.object[max(error.start - SHOWN // 4, 0) : error.end]
        raise BadBody(f"The text {_shown(around)} has an unpaired surrogate.") from None


def _shown(text: str) -> str:
    return ascii(text[:SHOWN])
