"""Values that users hand over, made plain JSON before they are sent; what is not JSON is refused with its path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json

DEEPEST = 100


def plain(value: Any, path: str, depth: int = 0) -> Any:
    """Return the value as plain JSON; sequences and mappings of any kind become lists and dicts."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _refuse(path, f"{value} is not a number in JSON")
    if depth > DEEPEST:
        return _refuse(path[:80] + "…", f"nested deeper than {DEEPEST} levels")
    if isinstance(value, Mapping):
        return {_key(key, path): plain(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain(item, f"{path}[{position}]", depth + 1) for position, item in enumerate(value)]
    return _refuse(path, f"{type(value).__name__} is not JSON; convert it first, e.g. to a text")


def plain_object(value: Any, path: str) -> Json:
    """Return a value that must be an object, as plain JSON."""
    if not isinstance(value, Mapping):
        _refuse(path, f"must be an object (a dict), not {type(value).__name__}")
    made: Json = plain(value, path)
    return made


def _key(key: Any, path: str) -> str:
    return key if isinstance(key, str) else _refuse(path, f"has the key {key!r}, which is not a text")


def _refuse(path: str, problem: str) -> NoReturn:
    raise CrewInvalidInput(f"{path}: {problem}. Nothing was sent")
