"""Reads the arguments of a tool's call, and checks them by the tool's schema."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

from crewai.tools import BaseTool
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic.errors import PydanticUserError

AS_GIVEN = ("default", "examples", "enum", "const")  # values in a JSON Schema, not schemas


def arguments_by_name(tool: BaseTool, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name; put those without a name in a list."""
    if not args:
        return kwargs
    function = getattr(tool, "func", None) or getattr(tool, method)
    try:
        named = dict(inspect.signature(function).bind_partial(*args).arguments)
    except (TypeError, ValueError):
        named = {}
    return {**named, **kwargs} if named and not named.keys() & kwargs.keys() else {"arguments": [*args], **kwargs}


def validated(tool: BaseTool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the tool receives them.

    :raises ValueError: if the tool's schema rejects them or would drop some of them
    """
    if not tool.args_schema.model_fields:  # CrewAI passes any arguments to such a tool
        return arguments
    read = tool.args_schema.model_validate(arguments)
    taken: dict[str, Any] = read.model_dump()
    if dropped := _dropped(arguments, taken) and _dropped(arguments, read.model_dump(by_alias=True)):
        raise ValueError(f"it has no argument {dropped!r}")
    return taken


def arguments_schema(tool: BaseTool) -> dict[str, Any] | None:
    """Return the JSON Schema of a tool's arguments, which allows no others unless the tool does; None without one."""
    with suppress(PydanticUserError):
        schema: dict[str, Any] = tool.args_schema.model_json_schema()
        return _closed(schema) if tool.args_schema.model_fields else {}
    return None


def _closed(schema: Any) -> Any:
    """Refuse unknown fields, which pydantic drops by default."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: each if name in AS_GIVEN else _closed(each) for name, each in schema.items()}
    return {"additionalProperties": False, **closed} if isinstance(schema.get("properties"), dict) else closed


def check_arguments(schema: dict[str, Any], arguments: Any) -> None:
    """Check arguments by the schema of their tool.

    :raises ValueError: if the schema rejects them
    """
    problem = best_match(Draft202012Validator(schema).iter_errors(arguments))
    if problem is not None:
        raise ValueError(f"{'.'.join(map(str, problem.absolute_path)) or 'the arguments'}: {problem.message}")


def _dropped(arguments: Any, taken: Any) -> str | None:
    """Return the first field that a schema has dropped; by default, pydantic drops unknown fields."""
    if isinstance(arguments, list) and isinstance(taken, list):
        return next(filter(None, map(_dropped, arguments, taken)), None)
    if not (isinstance(arguments, dict) and isinstance(taken, dict)):
        return None
    parts = (name if name not in taken else _dropped(each, taken[name]) for name, each in arguments.items())
    return next(filter(None, parts), None)
