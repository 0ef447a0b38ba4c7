"""Reads and prepares stored JSON; invalid JSON becomes `UNREADABLE` instead of raising an error."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar, Final

LARGEST_WHOLE = 2**63  # larger numbers may be too long for Python to print
DEEPEST = 500  # levels of lists and objects; SQLite and some versions of Python refuse more than 1000


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

    Values inside the deepest level are kept as JSON text. Do not copy plain strings: many executions may hold a large
    one while waiting for their turn to write.
    """
    try:
        plain = _tidied(value)
    except RecursionError:
        plain = _read_back(value)
    _flatten(plain)
    return plain


def _flatten(plain: Any) -> None:
    """Replace everything inside the deepest level with text, level by level, because recursion has a limit too."""
    level = [plain] if isinstance(plain, (list, dict)) else []
    for _ in range(1, DEEPEST):
        level = [container[place] for container in level for place in _places(container)]
        if not level:
            return
    for container in level:
        for place in _places(container):
            container[place] = json.dumps(container[place])


def _places(container: Any) -> list[Any]:
    """Return where lists and objects are in a list or an object."""
    entries = container.items() if isinstance(container, dict) else enumerate(container)
    return [place for place, inner in entries if isinstance(inner, (list, dict))]


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
