"""Answers of models and tools as JSON text that comes back equal, and what was asked as text that is the same again."""

from __future__ import annotations

import importlib
import json
import re
from contextlib import suppress
from functools import reduce
from typing import Any

from pydantic import BaseModel

from crew_service.engine.crew import LONGEST_TOLD

ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")  # of an object that somebody has printed into a prompt
MADE_ID = re.compile(r"\bcall_\d{9,}\b")  # CrewAI's own, by `id()`, of a call that the provider gave none
PLAIN = (str, int, float, bool, type(None))


class NotStorable(Exception):
    """The answer would not come back equal."""


class Raised(Exception):
    """Stands for the exception that a tool has raised; it has its name and its text."""


def encoded(answer: Any, expected: type[BaseModel] | None = None, *, is_whole: bool = True) -> str:
    """Return JSON.

    :param expected: the class that the call asked for, which need not be importable
    :param is_whole: whether it must come back equal; else without what its classes leave out, such as embeddings
    """
    try:
        text = json.dumps(_packed(answer, expected))
        same = decoded(text, expected)
        if type(same) is type(answer) and (not is_whole or same == answer):
            return text
    except Exception as error:  # of somebody's own class
        raise NotStorable from error
    raise NotStorable


def failure(error: Exception) -> str:
    return json.dumps({"raised": [type(error).__name__, str(error)]})


def decoded(text: str, expected: type[BaseModel] | None = None) -> Any:
    """Return the answer; a failure as an exception, which the caller raises."""
    return _unpacked(json.loads(text), expected)


def _packed(value: Any, expected: type[BaseModel] | None) -> Any:
    if type(value) in PLAIN:
        return value
    if type(value) is list:
        return [_packed(each, expected) for each in value]
    if type(value) is dict:
        return {"dict": {_key(name): _packed(each, expected) for name, each in value.items()}}
    if isinstance(value, BaseModel):
        kind = type(value)
        return {"class": None if kind is expected else _path(kind), "fields": value.model_dump(mode="json")}
    raise NotStorable


def _key(name: Any) -> str:
    if type(name) is not str:
        raise NotStorable
    return name


def _unpacked(packed: Any, expected: type[BaseModel] | None) -> Any:
    if isinstance(packed, list):
        return [_unpacked(each, expected) for each in packed]
    if not isinstance(packed, dict):
        return packed
    if "dict" in packed:
        return {name: _unpacked(each, expected) for name, each in packed["dict"].items()}
    if "raised" in packed:
        name, text = packed["raised"]
        return type(name, (Raised,), {})(text)
    kind = _class(packed["class"]) if packed["class"] else expected
    assert kind
    return kind.model_validate(packed["fields"])


def _path(kind: type) -> str:
    path = f"{kind.__module__}:{kind.__qualname__}"
    if _class(path) is not kind:
        raise NotStorable
    return path


def _class(path: str) -> Any:
    module, _, name = path.partition(":")
    return reduce(getattr, name.split("."), importlib.import_module(module))


def as_text(asked: Any) -> str:
    """Return what was asked as text that another process makes of the same question."""
    try:
        return json.dumps(asked, sort_keys=True, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return _without_addresses(repr(asked))


def told(value: Any) -> str | None:
    """Return a value as JSON text for people, of a long one the beginning; None where that fails."""
    given = value[: LONGEST_TOLD + 1] if isinstance(value, str) else value
    with suppress(Exception):  # of somebody's own class
        return as_text(given)[: LONGEST_TOLD + 1]
    return None


def prompt_as_text(asked: Any) -> str:
    return _without_addresses(as_text(asked))


def _plain(value: Any) -> Any:
    with suppress(Exception):
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        if isinstance(value, set | frozenset):
            return sorted(map(as_text, value))
        if isinstance(value, bytes):
            return value.hex()
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else ADDRESS.sub("", repr(value))


def _without_addresses(text: str) -> str:
    ids: dict[str, str] = {}
    return MADE_ID.sub(lambda found: ids.setdefault(found[0], f"call_{len(ids)}"), ADDRESS.sub("", text))
