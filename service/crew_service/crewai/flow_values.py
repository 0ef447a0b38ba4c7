"""Converts a Flow's values to text for display, and the results of its methods to and from their stored form."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Container
from datetime import date, time
from typing import Any

from crewai.flow.human_feedback import HumanFeedbackResult
from pydantic import BaseModel

from crew_service.crewai import codec

LONGEST_RESULT = 11 * 1024 * 1024  # characters of an encoded result
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
    try:
        return json.loads(json.dumps(_with_plain_keys(value), default=_plain))
    except Exception:  # raised by a user's class, or it contains itself
        return codec.NotStorable(value).kept


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
        try:
            return value.model_dump(mode="json", fallback=str)
        except Exception:  # such as bytes that are not UTF-8
            return {name: jsonable(each) for name, each in vars(value).items() if name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_plain_keys(dataclasses.asdict(value))
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, enum.Enum):
        return value.value
    return value.isoformat() if isinstance(value, date | time) else str(value)


def stored(value: Any, packages: Container[str], name: str) -> Stored:
    """Encode the result of the method with this name for `restored`; if that is impossible, `lost` names its type."""
    try:
        text = codec.encoded(value, packages=packages)
    except codec.NotStorable as error:
        return {"lost": type(value).__name__, "problem": problem(error, f"the return value of its method {name!r}")}
    if len(text) > LONGEST_RESULT:
        told = f"the return value of its method {name!r} takes {len(text) >> 20} MiB, more than are kept"
        return {"lost": type(value).__name__, "problem": told}
    return {"kept": text}


def restored(record: Stored) -> Any:
    """Return a method's result.

    :raises Exception: of any kind, if its class has changed or is gone
    """
    if "kept" in record:
        return codec.decoded(record["kept"])
    if "model" not in record:  # stored by release 0.2.0, like the rest
        return record["value"]
    kind: Any = codec.resolved(":".join(record["model"]))
    return kind.model_validate(record["data"])


def problem(error: codec.NotStorable, whole: str) -> str:
    """Return which part of a value is not kept, and what would be, as the end of a sentence."""
    part = f"{error.place!r} in {whole}" if error.place else whole
    kept = f"; only the text {error.kept!r} would be kept" if error.kept else ""
    return f"{part} ({error.kind}) {error.reason or 'cannot be stored'}{kept}"
