"""Reads and prepares stored JSON; invalid JSON becomes `UNREADABLE` instead of raising an error."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar, Final

LARGEST_WHOLE = 2**63  # larger numbers may be too long for Python to print


class JsonText:
    """A stored value passed on unchanged: decoding and encoding 10 MB blocks every other thread."""

    KINDS: ClassVar[dict[str, type]] = {'"': str, "[": list, "{": dict}

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def kind(self) -> type:
        return self.KINDS.get(self.text[:1], object)


class Unreadable:
    """Replaces a stored value that cannot be decoded."""

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE: Final = Unreadable()


def loads(text: Any) -> Any:
    """Decode JSON for SQLAlchemy: one bad value must not make the other rows of a result unreadable."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return UNREADABLE


def tidy(value: Any) -> Any:
    """Convert a crew's value to plain JSON that every reader accepts: no lone surrogates, no NaN, no foreign types.

    Do not copy plain strings: many executions may hold a large one while waiting for their turn to write.
    """
    try:
        return _tidied(value)
    except RecursionError:
        return _read_back(value)


def _tidied(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value if _is_encodable(value) else value.encode("utf-8", "replace").decode()
    if kind is list:
        return [_tidied(each) for each in value]
    if kind is dict and all(type(name) is str for name in value):
        return {_tidied(name): _tidied(each) for name, each in value.items()}
    if kind is float:
        return value if math.isfinite(value) else None
    if value is None or kind is bool or (kind is int and abs(value) < LARGEST_WHOLE):
        return value
    return _read_back(value)


def _is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_back(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()
    return json.loads(text, parse_constant=lambda _: None)
