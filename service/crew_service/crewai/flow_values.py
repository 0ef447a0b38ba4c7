"""Converts a Flow's values to text for display, and to and from JSON for storage."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
from datetime import date, time
from typing import Any

from crewai.flow.human_feedback import HumanFeedbackResult
from pydantic import BaseModel

Stored = dict[str, Any]


def text(value: Any) -> str:
    """Return readable text: strings unchanged, a crew's answer as its text, everything else as JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case HumanFeedbackResult():
            return text(value.output)
        case BaseModel() if isinstance(getattr(value, "raw", None), str):
            return str(value.raw)  # type: ignore[attr-defined]
        case _:
            return json.dumps(jsonable(value), ensure_ascii=False)


def json_object(value: Any) -> dict[str, Any] | None:
    """Return the JSON object that a value or string represents; None if it does not represent one."""
    if isinstance(value, HumanFeedbackResult):
        return json_object(value.output)
    if isinstance(value, BaseModel) and isinstance(getattr(value, "raw", None), str):
        structured = getattr(value, "json_dict", None) or getattr(value, "pydantic", None)
        return json_object(structured if structured is not None else value.raw)  # type: ignore[attr-defined]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    else:
        value = jsonable(value)
    return value if isinstance(value, dict) else None


def jsonable(value: Any) -> Any:
    """Return a value as the plain JSON that CrewAI stores: models as objects, sets as lists, the rest as strings."""
    return json.loads(json.dumps(_with_plain_keys(value), default=_plain))


def _with_plain_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(name): _with_plain_keys(each) for name, each in value.items()}
    return [_with_plain_keys(each) for each in value] if isinstance(value, list | tuple) else value


def _key(name: Any) -> Any:
    """Convert a dict's key to one that JSON allows, as CrewAI does when it stores a state."""
    if isinstance(name, enum.Enum):
        return _key(name.value)
    return name if isinstance(name, str | int | float | None) else str(name)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_plain_keys(dataclasses.asdict(value))
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, enum.Enum):
        return value.value
    return value.isoformat() if isinstance(value, date | time) else str(value)


def stored(value: Any) -> Stored:
    """Encode a method's result for `restored`; if decoding would not return an equal value, `lost` names the type."""
    value = value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, BaseModel):
        kind = type(value)
        record: Stored = {"model": [kind.__module__, kind.__qualname__], "data": jsonable(value)}
    else:
        record = {"value": jsonable(value)}
    try:
        same = restored(record) == value
    except Exception:
        same = False
    return record if same else {"lost": type(value).__name__}


def restored(record: Stored) -> Any:
    if "model" not in record:
        return record["value"]
    module, name = record["model"]
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found.model_validate(record["data"])
