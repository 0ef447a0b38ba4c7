"""JSON as users pass it, as XCom stores it, and as a template renders it.

Values from users are converted to plain JSON before they are sent; anything that is not JSON is refused, and the error
names its path.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NoReturn

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import ExecutionState, Json, shortened, shown

DEEPEST_INPUT = 100


def is_uuid(value: Any) -> bool:
    """Return whether a value is a UUID in its usual form."""
    return bool(re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", str(value)))


def is_sha256(value: Any) -> bool:
    """Return whether a value is a SHA-256 hash in hexadecimal."""
    return isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{64}", value))


def moment(value: Any) -> datetime | None:
    """Return the time in UTC that a value names in ISO 8601; None if it names none."""
    with suppress(TypeError, ValueError, OverflowError):
        return datetime.fromisoformat(value).astimezone(UTC)
    return None


def plain(value: Any, path: str, depth: int = 0) -> Any:
    """Return the value as plain JSON; sequences and mappings of any kind become lists and dicts."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _refuse(path, f"{value} is not a JSON number")
    if depth > DEEPEST_INPUT:
        return _refuse(path[:80] + "…", f"nested deeper than {DEEPEST_INPUT} levels")
    if isinstance(value, Mapping):
        return {_key(key, path): plain(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain(item, f"{path}[{position}]", depth + 1) for position, item in enumerate(value)]
    return _refuse(path, f"{type(value).__name__} is not JSON; convert it first, e.g. to a string")


def plain_object(value: Any, path: str) -> Json:
    """Return a value as plain JSON; it must be an object."""
    if not isinstance(value, Mapping):
        _refuse(path, f"must be an object (a dict), not {type(value).__name__}")
    made: Json = plain(value, path)
    return made


def _key(key: Any, path: str) -> str:
    return key if isinstance(key, str) else _refuse(path, f"has the key {shown(key)}, which is not a string")


def _refuse(path: str, problem: str) -> NoReturn:
    raise CrewInvalidInput(f"{shortened(path)}: {problem}. Nothing was sent")


DEEPEST_XCOM = 64  # levels of nesting; whether deeper values work depends on the interpreter's remaining stack
# Airflow refuses objects with a key from the first set, and converts objects with both keys from the second.
RESERVED = {"__classname__", "__id__"}
OLD_FORM = {"__type", "__var"}
# Airflow's processes cannot exchange integers outside this range.
SMALLEST, LARGEST = -(2**63), 2**64 - 1
# From this value up, PostgreSQL returns floats as integers.
FLOATS_BELOW = 1e16


def handed_on(value: Any) -> Any:
    """Return a JSON value for XCom; a value that XCom would change becomes text."""
    return value if is_kept(value) else json.dumps(value, ensure_ascii=False)


def is_kept(value: Any) -> bool:
    """Return whether XCom returns a JSON value unchanged."""
    open_ones = [(value, 0)]
    while open_ones:
        each, depth = open_ones.pop()
        if not _is_kept(each) or depth > DEEPEST_XCOM:
            return False
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        open_ones += [(part, depth + 1) for part in inner]
    return True


def _is_kept(value: Any) -> bool:
    if isinstance(value, dict):
        return RESERVED.isdisjoint(value) and not value.keys() >= OLD_FORM
    if isinstance(value, float):
        return abs(value) < FLOATS_BELOW
    return not isinstance(value, int) or SMALLEST <= value <= LARGEST


def value_of(value: Any) -> Any:
    """Return the value that the text of a rendered template describes; any other value unchanged."""
    if isinstance(value, str):
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                return read(value)
    return value


def record_of(value: Any, name: str) -> Json:
    """Return a record from an XCom, or from the text of a rendered template."""
    record = value_of(value)
    if not isinstance(record, Mapping):
        raise CrewInvalidInput(f"{name} must be a record, not {type(record).__name__}; nothing was sent")
    return dict(record)


def record_or_none(value: Any) -> Json | None:
    """Return a record; None if the value is not one."""
    try:
        return record_of(value, "the record")
    except CrewInvalidInput:
        return None


class RenderedRecord(Mapping[str, Any]):
    """A record in a rendered template field; Airflow, which shows such fields, gets one line without its texts."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = dict(record)

    def __getitem__(self, name: str) -> Any:
        return self._record[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)

    def serialize(self) -> str:
        """Return the line; Airflow calls this method of any value that is not plain JSON."""
        draft = self.get("output")
        of = f" of execution {str(named)[:100]}" if (named := self.get("execution_id")) else ""
        parts = [f"{self._kind}{of}"]
        if draft is not None:
            size = len(draft if isinstance(draft, str) else json.dumps(draft, ensure_ascii=False, default=str))
            parts.append(f"{size:,} characters")
        if is_sha256(digest := self.get("output_sha256")):
            parts.append(f"sha256 {digest}")
        return ", ".join(parts)

    @property
    def _kind(self) -> str:
        if "is_approve" in self:
            return "review"
        return "output" if self.get("state") == ExecutionState.COMPLETED else "draft"

    __str__ = __repr__ = serialize


def rendered(value: Any) -> Any:
    """Return the value of a rendered template field with each record in it as a `RenderedRecord`."""
    result = value_of(value)
    if isinstance(result, Mapping):
        return result if isinstance(result, RenderedRecord) else RenderedRecord(result)
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        return [rendered(each) for each in result]
    return value


# Control and formatting characters, which could reorder or hide part of the text shown.
UNSEEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
_UNSEEN = re.compile(f"[{UNSEEN}]")


def visible(text: str) -> str:
    """Return text with invisible characters replaced by their JSON escapes."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
