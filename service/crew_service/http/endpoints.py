"""The endpoints of the API, one entry each: routes, documentation, authentication and tests all read this table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel

from crew_service.engine import paths
from crew_service.engine.usage_report import BY, GROUPS
from crew_service.http.api import (
    LISTED_STATES,
    LONGEST_KEY,
    LONGEST_LIST,
    MOST_IDS,
    MOST_STEPS,
    PATH,
    USUAL_LIST,
    USUAL_STEPS,
    Api,
)
from crew_service.http.dialects import Dialect, response_models
from crew_service.http.dialects.request_models import FlowAnswerBody, KickoffBody, ResumeFeedbackBody
from crew_service.http.slots import EDITS, SLOTS
from crew_service.http.uploads import OF_ONE

KICKOFF_ID = {
    "name": "kickoff_id",
    "in": "path",
    "required": True,
    "description": "The id to poll.",
    "schema": {"type": "string", "minLength": 1},
    "example": response_models.ID,
}
SOME_ID = {
    **KICKOFF_ID,
    "name": "id",
    "description": "The execution's id, or any id by which it is or was polled.",
}
IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "description": "The `ETag` of an earlier response; it changes whenever something happens to the execution.",
    "schema": {"type": "string"},
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A repeated request with the same key and body returns the same response and has no further effect.",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY},
}
STATE = {
    "name": "state",
    "in": "query",
    "description": "Only executions in this state.",
    "schema": {"type": "string", "enum": list(LISTED_STATES)},
}
IDS = {
    "name": "ids",
    "in": "query",
    "required": True,
    "description": f"The ids to poll, separated by commas, at most {MOST_IDS}.",
    "schema": {"type": "string", "pattern": f"^[^,]+(,[^,]+){{0,{MOST_IDS - 1}}}$"},
    "example": f"{response_models.ID},{response_models.ID}",
}
LIMIT = {
    "name": "limit",
    "in": "query",
    "description": "Maximum number of executions.",
    "schema": {"type": "integer", "minimum": 1, "maximum": LONGEST_LIST, "default": USUAL_LIST},
}
AFTER = {
    "name": "after",
    "in": "query",
    "description": "Only steps with a higher number.",
    "schema": {"type": "integer", "minimum": 0, "maximum": paths.MOST_NUMBER, "default": 0},
}
STEPS_LIMIT = {
    **LIMIT,
    "description": "Maximum number of steps; fewer are returned if the response would exceed 256 KiB.",
    "schema": {"type": "integer", "minimum": 1, "maximum": MOST_STEPS, "default": USUAL_STEPS},
}
FROM = {
    "name": "from",
    "in": "query",
    "description": "The first day, in UTC (default: the first of this month).",
    "schema": {"type": "string", "format": "date"},
}
TO = {**FROM, "name": "to", "description": "The last day (default: the last of this month)."}
BY_WHAT = {
    "name": "by",
    "in": "query",
    "description": f"A row for each of these, separated by commas: some of {', '.join(BY)}, in this order.",
    "schema": {"type": "string", "default": "day", "enum": GROUPS},
}
FILE_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The file's name; its slashes may be sent as they are.",
    "schema": {"type": "string"},
}
FILE_VERSION = {
    "name": "version",
    "in": "query",
    "description": "By default, the newest.",
    "schema": {"type": "integer", "minimum": 1, "maximum": paths.MOST_NUMBER},
}
DIRECTION = {
    "name": "direction",
    "in": "query",
    "description": "`in` for a file that the caller gave.",
    "schema": {"type": "string", "enum": ["in", "out"], "default": "out"},
}
REQUEST_ID = {
    "name": "request_id",
    "in": "path",
    "required": True,
    "description": "The id of the question.",
    "schema": {"type": "string", "minLength": 1},
    "example": response_models.ID,
}
RESPONSE_TOKEN = {
    "name": "token",
    "in": "query",
    "required": True,
    "description": "From the webhook; valid for one answer.",
    "schema": {"type": "string"},
}
BODY_PROBLEMS = {
    400: "The body or the key is not valid, or the state of the execution does not allow the request.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
}
UPLOAD = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"},
        "field_name": {"type": "string", "description": "The name of its input, which is returned."},
    },
    "required": ["file"],
}
Handler = Callable[[Api, Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An API endpoint: its path, its handler, and its documentation."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any  # the model for a 200; None if it is not JSON
    media: type[Response] = JSONResponse
    tag: str = "Executions"
    needs_token: bool = True
    frequent: bool = False  # tried first by the router
    has_slots: bool = False  # whether it uses an owner's limited slots
    parameters: tuple[dict[str, Any], ...] = ()
    body: type[BaseModel] | None = None
    form: Mapping[str, Any] | None = None  # the schema of a body that is a form
    problems: Mapping[int, str] = field(default_factory=dict)  # errors by code, except those that many endpoints share
    problem: type[BaseModel] = response_models.Problem  # the model for a 422
    too_many: type[BaseModel] = response_models.Problem  # the model for a 429

    @property
    def route(self) -> str:
        """The path for the router: a file's name may contain slashes."""
        return self.path.replace("{name}", "{name:path}")

    @property
    def refusals(self) -> dict[int, str]:
        """The reasons for errors, by code."""
        denied = {401: "The token is missing or not valid."} if self.needs_token else {}
        busy = {429: f"You already have {SLOTS} pages, lists or records in progress."} if self.has_slots else {}
        unavailable = {503: "The database cannot be used, or too much is being sent to this service."}
        return {**denied, **busy, **unavailable, **self.problems}


def table(dialect: Dialect, *, flow: bool = False) -> tuple[Endpoint, ...]:
    """Return every endpoint of the API, in the order of the documentation; a Flow has more endpoints than a crew."""
    return (
        Endpoint(
            method="GET",
            path="/inputs",
            handler=Api.inputs,
            summary="List the crew's inputs",
            answer=response_models.Inputs,
        ),
        Endpoint(
            method="POST",
            path="/files",
            handler=Api.upload,
            summary="Upload a file for a kickoff",
            answer=response_models.UploadedFile,
            form=UPLOAD,
            problems={
                408: "The file did not arrive in time.",
                413: "The file is too large.",
                dialect.bad_request: "The form has no file.",
                429: "Your unused uploads have reached their limit, and each is deleted after an hour, or you already "
                f"have {OF_ONE} uploads in progress.",
                507: "The service's files have reached their limit.",
            },
        ),
        Endpoint(
            method="POST",
            path="/kickoff",
            handler=Api.kickoff,
            summary="Start an execution",
            answer=response_models.KickedOff,
            parameters=(IDEMPOTENCY_KEY,),
            body=KickoffBody,
            too_many=response_models.OverBudgetProblem,
            problems=BODY_PROBLEMS
            | {
                404: f"A file, or the execution to continue{' or to restore from' if flow else ''}, is unknown.",
                409: "Another execution, whose `kickoff_id` is given, already continues this one.",
                429: "A budget is used up until the time that is given.",
                422: "Required inputs are missing (the detail names them), or the execution cannot be continued.",
            },
            problem=dialect.problem,
        ),
        Endpoint(
            method="GET",
            path="/status/{kickoff_id}",
            handler=Api.status,
            summary="Poll an execution",
            answer=dialect.status_answer,
            frequent=True,
            parameters=(KICKOFF_ID,),
            problems=dialect.status_problems,
        ),
        Endpoint(
            method="GET",
            path=PATH,
            handler=Api.statuses,
            summary="Poll many executions in one request",
            answer=response_models.Statuses,
            frequent=True,
            parameters=(IDS,),
            problems={dialect.bad_request: "The ids are not valid."},
            problem=dialect.problem,
        ),
        Endpoint(
            method="GET",
            path="/executions",
            handler=Api.executions,
            summary="List executions, newest first",
            answer=response_models.Listing,
            has_slots=True,
            parameters=(STATE, LIMIT),
            problems={dialect.bad_request: "The state or the limit is not valid."},
            problem=dialect.problem,
        ),
        Endpoint(
            method="GET",
            path="/executions/{id}",
            handler=Api.details,
            summary="Get all details of an execution",
            answer=response_models.Details,
            has_slots=True,
            parameters=(SOME_ID, IF_NONE_MATCH),
            problems={304: "Nothing has changed.", 404: "The id is unknown."},
        ),
        Endpoint(
            method="GET",
            path="/executions/{id}/steps",
            handler=Api.steps,
            summary="List model and tool calls in order",
            answer=response_models.Steps,
            has_slots=True,
            parameters=(SOME_ID, AFTER, STEPS_LIMIT),
            problems={400: "The number or the limit is not valid.", 404: "The id is unknown."},
        ),
        Endpoint(
            method="GET",
            path="/executions/{id}/files",
            handler=Api.files,
            summary="List the files of an execution",
            answer=response_models.ExecutionFiles,
            has_slots=True,
            parameters=(SOME_ID,),
            problems={404: "The id is unknown."},
        ),
        Endpoint(
            method="GET",
            path="/executions/{id}/files/{name}",
            handler=Api.file,
            summary="Get a file of an execution",
            answer=None,
            has_slots=True,
            media=StreamingResponse,
            parameters=(SOME_ID, FILE_NAME, FILE_VERSION, DIRECTION, IF_NONE_MATCH),
            problems={
                304: "It has not changed.",
                400: "The version or the direction is not valid.",
                404: "The id or the file is unknown.",
            },
        ),
        Endpoint(
            method="GET",
            path="/executions/{id}/logs",
            handler=Api.logs,
            summary="Get the crew's printed output, up to the last MiB",
            answer=None,
            has_slots=True,
            media=PlainTextResponse,
            parameters=(SOME_ID,),
            problems={403: "The token is a user's, not the organization's.", 404: "The id is unknown."},
        ),
        Endpoint(
            method="POST",
            path="/resume",
            handler=Api.resume,
            summary="Approve the draft of a waiting execution, or send it back",
            answer=dialect.resume_answer,
            parameters=(IDEMPOTENCY_KEY,),
            body=dialect.flow_resume_body if flow else dialect.resume_body,
            problems=BODY_PROBLEMS
            | dialect.resume_problems
            | {429: f"You already have {EDITS} edited answers in progress, or a budget is used up."},
            too_many=response_models.OverBudgetProblem,
            problem=dialect.problem,
        ),
        *(_of_flows(dialect) if flow else ()),
        Endpoint(
            method="POST",
            path="/stop/{kickoff_id}",
            handler=Api.stop,
            summary="Stop an execution",
            answer=response_models.Stopped,
            parameters=(KICKOFF_ID,),
            problems={400: "The execution has already ended.", 404: "The id is unknown."},
        ),
        Endpoint(
            method="GET",
            path="/usage",
            handler=Api.usage,
            summary="Get what was used, and what is left of the budgets",
            answer=response_models.UsageModel,
            has_slots=True,
            parameters=(FROM, TO, BY_WHAT),
            problems={400: "A date or `by` is not valid, or there are too many rows."},
            tag="Service",
        ),
        _check(
            "/healthz",
            Api.healthz,
            "Check that the service works",
            "The database cannot be written to, or a thread of the service has ended or hangs.",
        ),
        _check(
            "/livez",
            Api.livez,
            "Check that the process is alive, regardless of its database",
            "A thread of the service has ended and cannot start again; restart the service.",
        ),
        _check(
            "/readyz",
            Api.readyz,
            "Check that the service is ready for requests",
            "The same as for `/healthz`, or the service is shutting down.",
            response_models.Ready,
        ),
        Endpoint(
            method="GET",
            path="/metrics",
            handler=Api.metrics,
            summary="Get metrics for Prometheus",
            answer=None,
            media=PlainTextResponse,
            tag="Service",
            problems={403: "The token is a user's, but the metrics cover all users."},
        ),
    )


def _check(path: str, handler: Handler, summary: str, problem: str, answer: Any = response_models.Health) -> Endpoint:
    """Return an endpoint for probes, which send no token."""
    return Endpoint(
        method="GET",
        path=path,
        handler=handler,
        summary=summary,
        answer=answer,
        problems={503: problem},
        tag="Service",
        needs_token=False,
    )


def _of_flows(dialect: Dialect) -> tuple[Endpoint, ...]:
    problems = BODY_PROBLEMS | {
        404: "The Flow is unknown.",
        409: "The question was already answered; the response states by whom and when.",
        422: "The answer is empty or not one of the outcomes.",
    }
    return (
        Endpoint(
            method="POST",
            path="/resume_feedback",
            handler=Api.resume_feedback,
            summary="Answer a Flow's current question",
            answer=response_models.Accepted,
            body=ResumeFeedbackBody,
            problems=problems,
            problem=dialect.problem,
        ),
        Endpoint(
            method="POST",
            path="/human_feedback_requests/{request_id}/respond",
            handler=Api.respond,
            summary="Answer a question at the address from its webhook",
            answer=response_models.Accepted,
            parameters=(REQUEST_ID, RESPONSE_TOKEN),
            body=FlowAnswerBody,
            problems={**problems, 401: "The token does not match this question."},
            problem=dialect.problem,
            needs_token=False,
        ),
    )
