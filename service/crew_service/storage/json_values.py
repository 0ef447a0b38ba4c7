"""Stored JSON never fails to be read: what is not JSON any more reads as `UNREADABLE`."""

from __future__ import annotations

import json
from typing import Any, Final


class Unreadable:
    """Stands for a stored value that cannot be decoded."""

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE: Final = Unreadable()


def loads(text: Any) -> Any:
    """Decode for the engine: one bad value must not cost the other rows of an answer."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return UNREADABLE


def tidy(value: Any) -> Any:
    """Make a crew's value plain JSON that every reader accepts: no lone surrogates, no NaN, no foreign types."""
    text = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()
    return json.loads(text, parse_constant=lambda _: None)
