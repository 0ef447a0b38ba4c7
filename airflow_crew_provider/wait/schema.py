"""The schema of a crew's output: a JSON Schema or a pydantic model. The libraries are imported only when needed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from itertools import islice
from typing import Any

from airflow_crew_provider.api.status import json_in
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json, reason, shown

NAME = "output_schema"
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*")
REFERENCES = ("$ref", "$dynamicRef")
# Limits on the description of a mismatch, so that an output of megabytes does not become a message of megabytes.
MOST_VIOLATIONS, LONGEST_VIOLATION = 20, 300
MOST_FOUND = 1_000  # violations collected at most
# Without a type, a schema with these keywords accepts any string, which nobody intends.
STRUCTURE = {"properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems", "contains"}
SAME_OBJECT = ("allOf", "anyOf", "oneOf", "if", "then", "else")  # keywords whose schemas describe the same value
SAY_TYPE = {"type", "enum", "const", "anyOf", "oneOf", "allOf", *REFERENCES}


def refuse_bad_schema(schema: Any) -> None:
    """Refuse an invalid schema when the DAG file is parsed; a model given by its path is imported later.

    :raises CrewInvalidInput: the schema is invalid, or has an unresolvable reference
    """
    if isinstance(schema, dict):
        _refuse_bad_json_schema(schema)
    elif isinstance(schema, str):
        if not IMPORT_PATH.fullmatch(schema):
            raise CrewInvalidInput(f"{NAME} must look like 'package.module:Model', not {shown(schema)}")
    elif not _is_model(schema):
        kinds = "a JSON Schema (a dict), a pydantic model or its import path"
        raise CrewInvalidInput(f"{NAME} must be {kinds}, not {type(schema).__name__}")


def model_of(schema: Any) -> Any:
    """Return a schema with a model's import path replaced by the model.

    :raises CrewInvalidInput: the model cannot be imported
    """
    if not isinstance(schema, str):
        return schema
    module, _, name = schema.replace(":", ".").rpartition(".")
    try:
        model = getattr(import_module(module), name)
    except Exception as error:
        raise CrewInvalidInput(f"{NAME} {shown(schema)} cannot be imported: {reason(error)}") from None
    if not _is_model(model):
        raise CrewInvalidInput(f"{NAME} {shown(schema)} is not a pydantic model")
    return model


def named_keys(schema: Any) -> list[str]:
    """Return the keys of an object that a valid schema names; none for a model's import path, which is imported later.

    What a key is called in JSON is what counts: for a model's field, its alias.
    """
    if isinstance(schema, str):
        return []
    if not isinstance(schema, dict):
        try:
            schema = schema.model_json_schema()
        except Exception:  # a type without a JSON Schema; the keys are checked in the output
            return list(schema.model_fields)
    return sorted(_named_in(schema))


def validator_of(schema: Any) -> Callable[[Any], list[str]]:
    """Return a function that lists how a value violates the schema, each violation with its path.

    :raises CrewInvalidInput: the model cannot be imported
    """
    if isinstance(schema, dict):
        return lambda value: _json_schema_violations(schema, value)
    model = model_of(schema)
    return lambda value: _model_violations(model, value)


def matching(validator: Callable[[Any], list[str]], output: Any) -> tuple[Any, list[str]]:
    """Return the output in the form that the schema accepts, and any violations.

    A string is used unchanged if the schema accepts it; otherwise, the whole string is parsed as JSON. A schema that
    describes an object or a list accepts no strings, even without a ``type``.

    :raises CrewInvalidInput: the schema cannot be applied
    """
    violations = validator(output)
    if not violations or not isinstance(output, str):
        return output, violations
    try:
        value = json_in(output)
    except (ValueError, RecursionError):
        return output, [*violations, "$: the output is a string, not JSON"]
    return value, validator(value)


def listed(violations: list[str]) -> str:
    """Join violations into one message, with limits on their number and length."""
    lines = [_capped(each) for each in violations[:MOST_VIOLATIONS]]
    more = len(violations) - len(lines)
    return "; ".join([*lines, f"and {more} more"] if more else lines)


def _capped(text: str) -> str:
    return text if len(text) <= LONGEST_VIOLATION else f"{text[:LONGEST_VIOLATION]}…"


def _path(parts: Any) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


# --- JSON Schema ---


def _refuse_bad_json_schema(schema: Json) -> None:
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable

    try:
        validator_for(schema).check_schema(schema)
        _resolve_references(schema)
        _found_by_json_schema(schema, None)  # an endless reference fails with any value
    except SchemaError as error:
        problem = f"{_path(error.absolute_path)}: {_capped(error.message)}"
        raise CrewInvalidInput(f"{NAME} is not a JSON Schema: {problem}") from None
    except Unresolvable as error:
        raise CrewInvalidInput(
            f"{NAME} refers to {shown(error.ref)}, which it does not contain; nothing is fetched"
        ) from None
    except Exception as error:
        raise CrewInvalidInput(_cannot_be_applied(error)) from None


def _named_in(schema: Json) -> set[str]:
    """Return the keys that a schema names for the object itself, whatever part of the schema does so."""
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    resource = DRAFT202012.create_resource(schema)
    open_ones = [(schema, Registry().with_resource("", resource).resolver("").in_subresource(resource))]
    names: set[str] = set()
    visited: set[int] = set()
    while open_ones:
        part, resolver = open_ones.pop()
        if not isinstance(part, dict) or id(part) in visited:
            continue
        visited.add(id(part))
        possible = {name for name, rule in part.get("properties", {}).items() if rule is not False}
        names |= possible | set(part.get("required", ()))
        for keyword in SAME_OBJECT:
            subschemas = part.get(keyword, ())
            open_ones += [(each, resolver) for each in (subschemas if isinstance(subschemas, list) else [subschemas])]
        for name in REFERENCES:
            if isinstance(part.get(name), str):
                target = resolver.lookup(part[name])
                open_ones.append((target.contents, target.resolver))
    return names


def _resolve_references(schema: Json) -> None:
    """Look up every reference in the schema, so that a missing target is found before the crew runs.

    The target of a reference is a schema too, wherever it is.
    """
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).resolver("")
    open_ones, visited = [(resource, resolver)], set()
    while open_ones:
        part, resolver = open_ones.pop()
        resolver = resolver.in_subresource(part)
        for name in REFERENCES if isinstance(part.contents, dict) else ():
            if isinstance(part.contents.get(name), str):
                reference = resolver.lookup(part.contents[name])
                if id(reference.contents) not in visited:
                    visited.add(id(reference.contents))
                    validator_for(schema).check_schema(reference.contents)
                    target = Resource.from_contents(reference.contents, default_specification=DRAFT202012)
                    open_ones.append((target, reference.resolver))
        open_ones += [(each, resolver) for each in part.subresources()]


def _json_schema_violations(schema: Json, value: Any) -> list[str]:
    if isinstance(value, str) and STRUCTURE & set(schema) and not SAY_TYPE & set(schema):
        return ["$: the output is a string, but the schema describes an object or a list"]
    try:
        return _found_by_json_schema(schema, value)
    except Exception as error:
        raise CrewInvalidInput(_cannot_be_applied(error)) from None


def _cannot_be_applied(error: Exception) -> str:
    """Return an explanation of any error that the library raises for a schema that it cannot apply."""
    endless = isinstance(error, RecursionError)
    why = "it refers to itself endlessly or is nested too deeply" if endless else f"{type(error).__name__}: {error}"
    return f"{NAME} cannot be applied: {_capped(why)}"


def _found_by_json_schema(schema: Json, value: Any) -> list[str]:
    from jsonschema.validators import validator_for
    from referencing import Registry

    # Empty, because the default registry fetches schemas from the network.
    validator = validator_for(schema)(schema, registry=Registry())
    try:
        problems = list(islice(validator.iter_errors(value), MOST_FOUND))
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # the recursion limit was reached in code written in Rust
            raise RecursionError from None
        raise
    errors = sorted(problems, key=lambda error: _path(error.absolute_path))
    return [f"{_path(error.absolute_path)}: {error.message}" for error in errors]


# --- pydantic ---


def _is_model(schema: Any) -> bool:
    return isinstance(schema, type) and callable(getattr(schema, "model_validate_json", None))


def _model_violations(model: Any, value: Any) -> list[str]:
    """Validate the value as JSON, so that a strict model accepts its types' JSON form, such as a string for a date."""
    try:
        model.model_validate_json(json.dumps(value))
    except Exception as error:  # a model's own validators may raise anything
        errors = getattr(error, "errors", None)
        if not callable(errors):
            return [f"$: {model.__name__} raised {type(error).__name__}: {error}"]
        details = errors(include_url=False, include_context=False, include_input=False)
        return [f"{_path(each['loc'])}: {each['msg']}" for each in details]
    return []
