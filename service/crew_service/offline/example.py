"""The smallest value that fits a JSON Schema, as far as the schemas of models and tools go."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
DEEPEST = 12
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
    """Return a value that fits the schema; its free strings are ``text``."""
    return _value(schema, schema, text, DEEPEST)


def _value(schema: Any, root: Json, text: str, depth: int) -> Any:
    if not isinstance(schema, dict) or depth < -DEEPEST:
        return None
    schema = _resolved(schema, root)
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    if schema.get("enum"):
        return schema["enum"][0]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _value(_simplest(options), root, text, depth - 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = "null" if "null" in kind else kind[0]
    if kind == "object":
        return _object(schema, root, text, depth)
    if kind == "array":
        first = schema.get("prefixItems", [])
        count = max(schema.get("minItems", 0), min(0 if depth <= 0 else 1, schema.get("maxItems", 1)), len(first))
        items = [*first, *[schema.get("items", {})] * (count - len(first))]
        return [_value(each, root, text, depth - 1) for each in items]
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "string":
        return _string(schema, text)
    return True if kind == "boolean" else None


def _resolved(schema: Json, root: Json) -> Json:
    """Return the schema with its reference and its ``allOf`` merged in."""
    while "$ref" in schema:
        found: Any = root
        for step in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
        schema = {**found, **{name: value for name, value in schema.items() if name != "$ref"}}
    for part in schema.get("allOf", ()):
        merged = _resolved(part, root)
        properties = {**merged.get("properties", {}), **schema.get("properties", {})}
        required = [*merged.get("required", []), *schema.get("required", [])]
        schema = {**merged, **schema, **({"properties": properties, "required": required} if properties else {})}
    return schema


def _simplest(options: list[Any]) -> Any:
    return next((each for each in options if isinstance(each, dict) and each.get("type") == "null"), options[0])


def _object(schema: Json, root: Json, text: str, depth: int) -> Json:
    properties = schema.get("properties", {})
    named = schema.get("required", []) if depth <= 0 else [*properties, *schema.get("required", [])]
    return {name: _value(properties.get(name, {}), root, text, depth - 1) for name in dict.fromkeys(named)}


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


def _string(schema: Json, text: str) -> str:
    given = FORMATS.get(schema.get("format", ""), text)
    return given.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
