"""Finds where a Flow's state has fields of CrewAI's file types, from the schemas by which pydantic validates it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from crew_service.engine.file_inputs import INPUTS

LIBRARY = "crewai_files"
# What the place of a file takes: an object with a source; any of several types, one of which fits every file; a source.
TYPED, ANY, SOURCE = "typed", "any", "source"
Place = dict[str, Any]
# Parts of a schema that do not validate a value, and keys, which are strings in JSON.
SKIPPED = frozenset({"serialization", "metadata", "default", "config", "function", "keys_schema", "cls"})
ITEMS = {"items_schema", "values_schema", "extras_schema"}
NAMED = ("fields", "arguments_schema")


def places(model: type[BaseModel] | None) -> dict[str, Place]:
    """Return the places of files in the inputs, as `FileInputs` takes them; empty if there are none."""
    if model is None or LIBRARY not in sys.modules:
        return {}
    model.model_rebuild()
    by_name: dict[str, Place] = {}
    by_name[INPUTS] = _place(model.__pydantic_core_schema__, by_name)
    return by_name if any(map(_has_file, by_name.values())) else {}


def _place(schema: Any, known: dict[str, Place]) -> Place:
    """Return the place of a value that the schema validates; add those that schemas refer to by name to `known`."""
    if _is_of_library(schema):
        return {"file": _kind(schema.get("cls"))}
    if schema["type"] == "definition-ref":
        return {"refs": [schema["schema_ref"]]}
    if schema["type"] == "definitions":
        known |= {each["ref"]: _place(each, known) for each in schema["definitions"]}
        return _place(schema["schema"], known)
    if schema["type"] == "json":
        return {"json": _merged(_place(inner, known) for inner in _schemas(schema.get("schema")))}
    parts: list[Place] = []
    for key, value in schema.items():
        if key in ITEMS:
            parts += [{"each": _place(inner, known)} for inner in _schemas(value)]
        elif key in NAMED:
            parts += [place for name, field in _fields(value) for place in _named(name, field, known)]
        elif key not in SKIPPED:
            parts += [_place(inner, known) for inner in _schemas(value)]
    return _merged(parts)


def _is_of_library(schema: Any) -> bool:
    kind, function = schema.get("cls"), schema.get("function")
    function = function.get("function") if isinstance(function, dict) else function
    origins = [*(kind.__mro__ if isinstance(kind, type) else ()), function]
    return any(str(getattr(each, "__module__", "")).partition(".")[0] == LIBRARY for each in origins)


def _kind(model: Any) -> str:
    if not isinstance(model, type) or "source" not in getattr(model, "model_fields", ()):
        return SOURCE
    return ANY if (model.__module__.partition(".")[0], model.__name__) == (LIBRARY, "File") else TYPED


def _schemas(value: Any) -> Iterator[Any]:
    """Yield the schemas that a part of a schema contains, not those within them."""
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _schemas(inner)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a model, a TypedDict, a dataclass or a NamedTuple, each with its name or position."""
    if isinstance(value, dict) and not isinstance(value.get("type"), str):
        yield from value.items()
    elif isinstance(value, dict):
        yield from _fields(value.get("arguments_schema"))
    else:
        for position, field in enumerate(value or ()):
            if isinstance(field, dict):
                yield from ((field["name"], field), (str(position), field))


def _named(name: str, field: Any, known: dict[str, Place]) -> Iterator[Place]:
    """Yield a field's place under each name by which a value can be given."""
    place = _merged(_place(inner, known) for inner in _schemas(field["schema"]))
    aliases = field.get("validation_alias", field.get("alias", []))
    aliases = [aliases] if isinstance(aliases, str) else aliases
    if aliases and not isinstance(aliases[0], list):
        aliases = [aliases]  # one path
    yield {"names": {name: place}}
    for path in aliases:
        inner = place
        for step in reversed(path):
            inner = {"names": {str(step): inner}}
        yield inner


def _merged(parts: Any) -> Place:
    """Return the place of a value that belongs to all the places."""
    merged: Place = {}
    parts = list(parts)
    if kinds := [part["file"] for part in parts if part.get("file")]:
        refs = [ref for part in parts for ref in part.get("refs", ())]  # perhaps to another of these types
        kind = next((each for each in (ANY, TYPED) if each in kinds), SOURCE)
        return {"file": kind, "refs": refs} if refs else {"file": kind}
    for part in parts:
        merged["refs"] = [*merged.get("refs", []), *part.get("refs", [])]
        for key in ("each", "json"):
            if key in part:
                merged[key] = _merged([merged.get(key, {}), part[key]])
        names = merged.setdefault("names", {})
        for name, place in part.get("names", {}).items():
            names[name] = _merged([names.get(name, {}), place])
    return {key: value for key, value in merged.items() if value}


def _has_file(place: Place) -> bool:
    inner = [*place.get("names", {}).values(), place.get("each"), place.get("json")]
    return bool(place.get("file")) or any(map(_has_file, filter(None, inner)))
