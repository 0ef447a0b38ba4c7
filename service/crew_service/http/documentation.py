"""Documents each endpoint in /openapi.json and /docs, for the served dialect."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from inspect import cleandoc
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from crew_service import __version__
from crew_service.engine.agent_messages import MESSAGES, SCHEMA
from crew_service.engine.crew import Crew
from crew_service.engine.limits import Limits
from crew_service.http.dialects import live_models, response_models
from crew_service.http.endpoints import Endpoint
from crew_service.http.unsent import SHARED
from crew_service.http.uploads import FORM

DESCRIPTION = """
One crew, served over HTTP and JSON. A typical run:

1. `GET /inputs` lists the crew's inputs.
2. `POST /kickoff` starts an execution and returns its `kickoff_id`.
3. Poll `GET /status/{kickoff_id}` until the execution ends.
4. If a task needs a review, the execution waits, and `POST /resume` approves the draft or sends it back with feedback.

Unless noted otherwise, a request needs `Authorization: Bearer <token>`. The organization's token gives access to every
execution, a user's token only to that user's. Every error is JSON with a `detail`. Unknown fields are ignored, and null
means absent, except inside `inputs`.

To try a request, enter the token under **Authorize**, open an endpoint and press **Execute**; the page also shows the
`curl` command. The document itself is [openapi.json](openapi.json).
"""
TAGS = (
    {"name": "Executions", "description": "Start, poll, review and stop executions."},
    {"name": "Service", "description": "Health and metrics, for load balancers and monitoring."},
)
REF = "#/components/schemas/{model}"
NOT_MODIFIED = 304  # a response without a body
TO_BE_REPEATED = (429, 503)
RETRY_AFTER = {
    "Retry-After": {"description": "Seconds to wait before the next request.", "schema": {"type": "integer"}}
}


def _described(endpoint: Endpoint) -> APIRoute:
    """Return a route that is never called: FastAPI reads the endpoint's description from it."""
    return APIRoute(
        endpoint.path,
        _nothing,
        name=endpoint.handler.__name__,
        methods=[endpoint.method],
        response_model=endpoint.answer,
        response_class=endpoint.media,
        tags=[endpoint.tag],
        summary=endpoint.summary,
        description=_description(endpoint),
        responses=_refusals(endpoint),
        openapi_extra=_request(endpoint),
    )


def _nothing() -> None:  # no arguments and no docstring: FastAPI would describe both
    pass


def _description(endpoint: Endpoint) -> str:
    """Return the text above the fields: the purpose of the body, and a note if no token is needed."""
    body = cleandoc(endpoint.body.__doc__ or "") if endpoint.body else ""
    return "\n\n".join(filter(None, (body, "" if endpoint.needs_token else "No token is needed.")))


def _refusals(endpoint: Endpoint) -> dict[int | str, dict[str, Any]]:
    return {code: {"description": text, **_shape(endpoint, code)} for code, text in endpoint.refusals.items()}


def _shape(endpoint: Endpoint, code: int) -> dict[str, Any]:
    if code == NOT_MODIFIED:
        return {}
    headers = {"headers": RETRY_AFTER} if code in TO_BE_REPEATED else {}
    if endpoint.answer is None:  # a model would be shown with the media type of the 200
        return {"content": _json(response_models.Problem), **headers}
    models = {422: endpoint.problem, 429: endpoint.too_many}
    return {"model": models.get(code, response_models.Problem), **headers}


def _request(endpoint: Endpoint) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if endpoint.parameters:
        extra["parameters"] = list(endpoint.parameters)
    if endpoint.body:
        extra["requestBody"] = {"required": True, "content": _json(endpoint.body)}
    if endpoint.form:
        extra["requestBody"] = {"required": True, "content": {FORM: {"schema": endpoint.form}}}
    if not endpoint.needs_token:
        extra["security"] = []
    return extra


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}


def install(app: FastAPI, endpoints: tuple[Endpoint, ...], crew: Crew, limits: Limits, base: str) -> None:
    """Describe the crew served below the path `base`, which is empty for the root."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(endpoints, crew)
            _say_limits(app.openapi_schema["components"]["schemas"]["KickoffLimits"], limits)
            if base:
                app.openapi_schema["servers"] = [{"url": base}]
        return app.openapi_schema

    @cache
    def written() -> bytes:
        return json.dumps(document(), ensure_ascii=False, separators=(",", ":")).encode()

    async def answer(request: Request) -> Response:
        """Return the document, which is created only once because anybody may request it."""
        request.scope["state"][SHARED] = True
        return Response(written(), media_type="application/json")

    app.openapi = document  # type: ignore[method-assign]
    app.add_api_route("/openapi.json", answer, include_in_schema=False, response_model=None)


def _document(endpoints: tuple[Endpoint, ...], crew: Crew) -> dict[str, Any]:
    document = get_openapi(
        title="Crew Execution API",
        version=__version__,
        summary="Start, watch, review and stop executions of one crew.",
        description=DESCRIPTION,
        routes=[_described(endpoint) for endpoint in endpoints],
        tags=list(TAGS),
    )
    read = [endpoint.body for endpoint in endpoints if endpoint.body]
    _, bodies = models_json_schema([(model, "validation") for model in read], ref_template=REF)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(bodies["$defs"])
    _ask_for_inputs(components["schemas"]["KickoffBody"], crew)
    _give_back_nulls(components["schemas"])
    document["paths"] = {endpoint.path: document["paths"][endpoint.path] for endpoint in endpoints}
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    return document


def _give_back_nulls(schemas: dict[str, Any]) -> None:
    """Restore the nulls in examples: FastAPI omits them, but the live dialect's responses contain them."""
    models = {**vars(response_models), **vars(live_models)}
    for name, schema in schemas.items():
        if "examples" in schema and name in models:
            schema |= models[name].model_config["json_schema_extra"]


def _say_limits(schema: dict[str, Any], limits: Limits) -> None:
    for name, most in asdict(limits).items():
        for kind in schema["properties"][name]["anyOf"]:
            if most is not None and kind["type"] != "null":
                kind["maximum"] = most


def _ask_for_inputs(schema: dict[str, Any], crew: Crew) -> None:
    """Add the crew's own inputs, so that the document shows what this service's kickoff requires."""
    if crew.kind != "flow":
        del schema["properties"]["restoreFromStateId"]
    if not crew.inputs:
        return
    named: dict[str, Any] = {name: {} for name in crew.inputs}
    if crew.kind == "agent":
        named[MESSAGES] = SCHEMA
    schema["properties"]["inputs"] |= {"properties": named, "required": list(crew.required)}
    if crew.required:
        schema["required"] = ["inputs"]
    schema["examples"] = [{"inputs": {name: f"some {name}" for name in crew.inputs}}]
