"""The smallest value that fits a JSON Schema, as far as the schemas of models and tools go."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]
DEEPEST = 12
# A schema that names itself in several places multiplies with each step. Beyond FULL, only required values follow.
FULL = 200
LARGEST = 5_000
FORMATS = {
    "date": "2026-01-01",
    "time": "12:00:00Z",
    "date-time": "2026-01-01T12:00:00Z",
    "duration": "P1D",
    "email": "crew@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com/",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}


def example_of(schema: Json, text: str) -> Any:
    """Return a value that fits the schema; its free strings are ``text``.

    :raises ValueError: the schema demands a value that is too large, or has no end
    """
    return _Example(schema, text).value(schema, DEEPEST)


class _Example:
    def __init__(self, root: Json, text: str) -> None:
        self._root = root
        self._text = text
        self._written = 0

    def value(self, schema: Any, depth: int) -> Any:
        self._count()
        if not isinstance(schema, dict) or depth < -DEEPEST:
            return None
        schema = self._resolved(schema)
        if values := [schema[name] for name in ("const", "default") if name in schema] or schema.get("enum"):
            self._count(len(json.dumps(values[0])) // 100)
            return values[0]
        if options := schema.get("anyOf") or schema.get("oneOf"):
            return self.value(_simplest(options), depth - 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = "null" if "null" in kind else kind[0]
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind in ("integer", "number"):
            return _number(schema)
        if kind == "string":
            return self._string(schema)
        return True if kind == "boolean" else None

    def _count(self, values: int = 1) -> None:
        self._written += values
        if self._written > LARGEST:
            raise ValueError(f"the schema demands more than {LARGEST:,} values")

    def _resolved(self, schema: Json) -> Json:
        """Return the schema with its reference and its ``allOf`` merged in."""
        while "$ref" in schema:
            self._count()
            node: Any = self._root
            for step in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
                node = node.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, dict) else {}
            schema = {**node, **{name: value for name, value in schema.items() if name != "$ref"}}
        for part in schema.get("allOf", ()):
            self._count()
            merged = self._resolved(part)
            properties = {**merged.get("properties", {}), **schema.get("properties", {})}
            required = [*merged.get("required", []), *schema.get("required", [])]
            schema = {**merged, **schema, **({"properties": properties, "required": required} if properties else {})}
        return schema

    def _is_full(self, depth: int) -> bool:
        return depth <= 0 or self._written > FULL

    def _object(self, schema: Json, depth: int) -> Json:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        named = required if self._is_full(depth) else [*properties, *required]
        return {name: self.value(properties.get(name, {}), depth - 1) for name in dict.fromkeys(named)}

    def _array(self, schema: Json, depth: int) -> list[Any]:
        first = schema.get("prefixItems", [])
        wanted = min(0 if self._is_full(depth) else 1, schema.get("maxItems", 1))
        count = max(schema.get("minItems", 0), wanted, len(first))
        return [self.value(first[n] if n < len(first) else schema.get("items", {}), depth - 1) for n in range(count)]

    def _string(self, schema: Json) -> str:
        least = schema.get("minLength", 0)
        self._count(least // 100)
        return FORMATS.get(schema.get("format", ""), self._text).ljust(least, ".")[: schema.get("maxLength")]


def _simplest(options: list[Any]) -> Any:
    return next((each for each in options if isinstance(each, dict) and each.get("type") == "null"), options[0])


def _number(schema: Json) -> Any:
    """Return 1, or the nearest number within the bounds."""
    step = 1 if schema.get("type") == "integer" else 0.001
    least = [schema["minimum"]] if "minimum" in schema else []
    least += [schema["exclusiveMinimum"] + step] if "exclusiveMinimum" in schema else []
    most = [schema["maximum"]] if "maximum" in schema else []
    most += [schema["exclusiveMaximum"] - step] if "exclusiveMaximum" in schema else []
    number = max([min([1, *most]), *least])
    factor = schema.get("multipleOf")
    return -(-number // factor) * factor if factor else number
