"""What /openapi.json and /docs say of each endpoint, in the words of the dialect that is served."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse
from pydantic.json_schema import models_json_schema

from airflow_crew_provider import __version__

from .crews import Crew
from .dialects import Dialect, answers
from .dialects.requests import KickoffBody

DESCRIPTION = """
One crew, served over HTTP and JSON. A typical run:

1. `GET /inputs` tells which inputs the crew asks for.
2. `POST /kickoff` starts an execution and answers its `kickoff_id`.
3. `GET /status/{kickoff_id}` is polled until the execution is over.
4. Where a task asks for a person, the execution waits, and `POST /resume` decides: approve, or revise with feedback.

Every request carries `Authorization: Bearer <token>`. The organization's token sees every execution, a user's token
those which that user started. Every refusal is JSON with a `detail`. Unknown fields are ignored, and null is as good
as absent.
"""
FIGURES: dict[str, Any] = {
    "response_model": None,
    "response_class": PlainTextResponse,
    "responses": {
        401: {
            "description": "The token is missing or not valid.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    },
}
READING_ORDER = (
    "/inputs",
    "/kickoff",
    "/status/{kickoff_id}",
    "/resume",
    "/stop/{kickoff_id}",
    "/healthz",
    "/metrics",
)
REF = "#/components/schemas/{model}"
ANY_BUT_NULL = ["string", "number", "boolean", "array", "object"]
KICKOFF_ID = {
    "name": "kickoff_id",
    "in": "path",
    "required": True,
    "description": "The id to poll.",
    "schema": {"type": "string", "minLength": 1},
    "example": answers.ID,
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key with the same body gets the same answer, and nothing is done twice.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
BODY_PROBLEMS = {
    400: "The body or the key is not valid, or the state of the execution does not allow it.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
}


def routes(dialect: Dialect) -> dict[str, dict[str, Any]]:
    """For each endpoint, by its name, what its route is to say."""
    return {
        "status": _told(
            "Look at an execution", dialect.status_answer, parameters=[KICKOFF_ID], problems=dialect.look_problems
        ),
        "inputs": _told("Which inputs the crew asks for", answers.Inputs),
        "kickoff": _told(
            "Start an execution",
            answers.KickedOff,
            parameters=[IDEMPOTENCY_KEY],
            body=KickoffBody,
            problems=BODY_PROBLEMS | {422: "Required inputs are missing; the detail names them."},
            problem=dialect.problem,
        ),
        "resume": _told(
            "Decide for an execution that waits",
            dialect.resume_answer,
            parameters=[IDEMPOTENCY_KEY],
            body=dialect.resume_body,
            problems=BODY_PROBLEMS | dialect.resume_problems,
            problem=dialect.problem,
        ),
        "stop": _told(
            "Stop an execution",
            answers.Stopped,
            parameters=[KICKOFF_ID],
            problems={400: "The execution is over already.", 404: "The id is not known."},
        ),
        "metrics": _told("Figures for Prometheus", str, tag="Service") | FIGURES,
        "healthz": _told("Is the service ready?", answers.Health, tag="Service", open_to_all=True),
    }


def _told(
    summary: str,
    answer: Any,
    *,
    tag: str = "Executions",
    open_to_all: bool = False,
    parameters: list[dict[str, Any]] | None = None,
    body: type | None = None,
    problems: dict[int, str] | None = None,
    problem: type = answers.Problem,
) -> dict[str, Any]:
    refusals = {} if open_to_all else {401: "The token is missing or not valid."}
    refusals |= problems or {}
    extra: dict[str, Any] = {"parameters": parameters} if parameters else {}
    if body:
        content = {"application/json": {"schema": {"$ref": REF.format(model=body.__name__)}}}
        extra["requestBody"] = {"required": True, "content": content}
    if open_to_all:
        extra["security"] = []
    return {
        "tags": [tag],
        "summary": summary,
        "response_model": answer,
        "responses": {
            code: {"model": problem if code == 422 else answers.Problem, "description": text}
            for code, text in refusals.items()
        },
        "openapi_extra": extra,
    }


def install(app: FastAPI, dialect: Dialect, crew: Crew) -> None:
    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, dialect, crew)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, dialect: Dialect, crew: Crew) -> dict[str, Any]:
    told = get_openapi(
        title="Crew Execution API",
        version=__version__,
        summary="Start, watch, review and stop executions of one crew.",
        description=DESCRIPTION,
        routes=app.routes,
    )
    _, bodies = models_json_schema([(KickoffBody, "validation"), (dialect.resume_body, "validation")], ref_template=REF)
    components = told.setdefault("components", {})
    components.setdefault("schemas", {}).update(bodies["$defs"])
    _ask_for_inputs(components["schemas"]["KickoffBody"], crew)
    _give_back_nulls(components["schemas"])
    told["paths"] = {path: told["paths"][path] for path in READING_ORDER}
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    told["security"] = [{"token": []}]
    return told


def _give_back_nulls(schemas: dict[str, Any]) -> None:
    """FastAPI leaves null out of examples; in the answers of the live dialect it stands for a reason."""
    for name, schema in schemas.items():
        if "examples" in schema and hasattr(answers, name):
            schema |= getattr(answers, name).model_config["json_schema_extra"]


def _ask_for_inputs(schema: dict[str, Any], crew: Crew) -> None:
    """The crew's own inputs, so that the document says what a kickoff of this service needs."""
    if not crew.inputs:
        return
    named = {name: {"type": ANY_BUT_NULL} for name in crew.inputs}
    schema["properties"]["inputs"] |= {"properties": named, "required": list(crew.inputs)}
    schema["required"] = ["inputs"]
    schema["examples"] = [{"inputs": {name: f"some {name}" for name in crew.inputs}}]
