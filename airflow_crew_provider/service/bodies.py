"""A request body becomes a plain JSON object that can be stored and sent again, or is refused with one sentence."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from fastapi import HTTPException, Request

MAX_DEPTH = 64
SHOWN = 80  # characters of a caller's text that an answer repeats


class BadBody(ValueError):
    """The body is not a JSON object that the service can use."""


async def read(request: Request, *, limit: int, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await _collect(request, limit)
    except TimeoutError:
        raise HTTPException(408, f"The body did not arrive within {seconds:g} seconds.") from None


async def _collect(request: Request, limit: int) -> bytes:
    """Read on past the limit for a while, without keeping it: who is still sending does not hear the answer."""
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            body += chunk
        elif size > 32 * limit:
            break
    if size > limit:
        raise HTTPException(413, f"The body is larger than {limit} bytes.")
    return bytes(body)


def parse(raw: bytes, content_type: str | None) -> dict[str, Any]:
    if content_type is not None and content_type.partition(";")[0].strip().lower() != "application/json":
        raise BadBody(f"The content type must be application/json, not {content_type[:SHOWN]!r}.")
    value = _decode(raw)
    if not isinstance(value, dict):
        raise BadBody("The body must be a JSON object.")
    _check(value)
    return value


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
    except RecursionError:
        raise BadBody(f"The body is nested more than {MAX_DEPTH} levels deep.") from None
    except BadBody:
        raise
    except ValueError as error:
        raise BadBody(f"The body is not valid JSON: {error}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadBody(f"The name {_shown(twice)} stands twice in one object.")
    return value


def _no_constant(word: str) -> Any:
    raise BadBody(f"{word} is not valid JSON.")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadBody(f"The number {text[:SHOWN]} is out of range.")
    return value


def _check(body: dict[str, Any]) -> None:
    """Refuse what cannot be written as UTF-8 again, and depth that a later reader may not survive."""
    rest: list[tuple[Any, int]] = [(body, 1)]
    while rest:
        value, depth = rest.pop()
        if depth > MAX_DEPTH:
            raise BadBody(f"The body is nested more than {MAX_DEPTH} levels deep.")
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, dict):
            rest += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list):
            rest += [(part, depth + 1) for part in value]


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadBody(f"The text {_shown(text)} has half of a surrogate pair.") from None


def _shown(text: str) -> str:
    return ascii(text[:SHOWN])
