"""The manual at /docs: the OpenAPI document as a page to read, which needs nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from .page import html_page

Schema = dict[str, Any]


def add_to(app: FastAPI) -> None:
    async def docs(request: Request) -> Response:
        document = app.openapi()
        return html_page("manual.html", document=document, operations=list(_operations(document)))

    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False, response_model=None)


def _operations(document: Schema) -> Iterator[dict[str, Any]]:
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            body = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            yield {
                "method": method.upper(),
                "path": path,
                "summary": told["summary"],
                "open": told.get("security") == [],
                "parameters": told.get("parameters", []),
                "body": _shape(document, body) if body else None,
                "answers": [_answer(document, code, answer) for code, answer in told["responses"].items()],
            }


def _answer(document: Schema, code: str, answer: Schema) -> dict[str, Any]:
    content = answer.get("content", {}).get("application/json", {}).get("schema")
    shapes = [_shape(document, part) for part in _alternatives(content)] if content and code == "200" else []
    return {"code": code, "description": answer["description"], "shapes": shapes}


def _shape(document: Schema, schema: Schema) -> dict[str, Any]:
    """A table of the fields, and the examples as text."""
    schema = _resolved(document, schema)
    required = set(schema.get("required", ()))
    fields = [
        {
            "name": name,
            "kind": _kind(part),
            "required": name in required,
            "description": part.get("description", ""),
        }
        for name, part in schema.get("properties", {}).items()
    ]
    examples = [json.dumps(example, indent=2, ensure_ascii=False) for example in schema.get("examples", ())]
    return {"description": schema.get("description", ""), "fields": fields, "examples": examples}


def _resolved(document: Schema, schema: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    return document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]


def _alternatives(schema: Schema) -> list[Schema]:
    return schema.get("anyOf") or [schema]


def _kind(schema: Schema) -> str:
    """A type in words: `string or null`, `list of TaskResult`."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(_kind(part) for part in schema.get("anyOf") or schema["oneOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema.get("enum") or [schema["const"]])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
