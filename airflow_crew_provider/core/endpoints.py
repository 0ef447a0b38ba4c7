"""Each endpoint as a value: how to ask, and how to read what comes back. No I/O.

Requests fit both dialects, the specification's and that of live deployments; answers of both are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeGuard, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from airflow_crew_provider.core import responses, status_parser
from airflow_crew_provider.core.request_parts import idempotency, path_segment, webhook_fields
from airflow_crew_provider.core.responses import HttpResponse, Mask
from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewBadRequest,
    CrewError,
    CrewInvalidInput,
    CrewKeyReused,
    CrewMissingInputs,
    CrewNotFound,
    CrewOutcomeUnknown,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
    CrewUnauthorized,
    CrewWebPage,
)
from airflow_crew_provider.models import (
    CrewInputs,
    Execution,
    ExecutionState,
    Json,
    Kickoff,
    Resume,
    Resumed,
)

T = TypeVar("T")

KEY_TEXT = re.compile("idempotency.?key", re.IGNORECASE)
QUOTA_TEXT = "monthly execution limit reached"
# A gateway that gives up does not say what the service behind it did.
GATEWAY_ERRORS = (502, 503, 504)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One exchange: what to send, and how to read a 2xx answer."""

    method: str
    path: str
    read: Callable[[HttpResponse, Mask], T]
    body: Json | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    polled: str | None = None  # the id, of a status request
    target: str = field(default="", repr=False)  # what is asked instead of `path`, where no error may show it
    also: tuple[int, ...] = ()  # the refusals that `read` takes too

    @property
    def starts_something(self) -> bool:
        """Whether sending it twice could do harm."""
        return self.method == "POST"


def inputs() -> Call[CrewInputs]:
    """``GET /inputs`` (specification, section 4.1)."""
    return Call("GET", "/inputs", _read_inputs)


def kickoff(request: Kickoff) -> Call[str]:
    """``POST /kickoff`` (specification, section 4.2)."""
    body: Json = {"inputs": request.inputs}
    if request.meta is not None:
        body["meta"] = request.meta
    if request.restore_from is not None:
        body["restoreFromStateId"] = request.restore_from
    body |= webhook_fields(request.webhooks)
    return Call("POST", "/kickoff", _read_kickoff, body, idempotency(request.idempotency_key))


def status(kickoff_id: str) -> Call[Execution]:
    """``GET /status/{kickoff_id}`` (specification, section 4.3)."""
    path = f"/status/{path_segment(kickoff_id)}"
    return Call("GET", path, status_parser.StatusReader(kickoff_id), polled=kickoff_id)


def executions(state: str | None = None, limit: int = 20) -> Call[list[Execution]]:
    """``GET /executions``: only this project's crew service has it."""
    asked = {"state": str(state), "limit": str(limit)} if state else {"limit": str(limit)}
    return Call("GET", f"/executions?{urlencode(asked)}", _read_executions)


def resume(request: Resume) -> Call[Resumed]:
    """``POST /resume`` (specification, section 4.4), every field in the spelling of both dialects."""
    path_segment(request.execution_id)
    path_segment(request.crew_task_id)
    body = {
        "execution_id": request.execution_id,
        "executionId": request.execution_id,
        "task_id": request.crew_task_id,
        "taskId": request.crew_task_id,
        "human_feedback": request.human_feedback,
        "humanFeedback": request.human_feedback,
        **({} if request.is_approve is None else {"is_approve": request.is_approve, "isApprove": request.is_approve}),
        **({} if request.outcome is None else {"outcome": request.outcome}),
        **({} if request.edited_output is None else {status_parser.EDITS_FIELD: vars(request.edited_output)}),
        **({} if request.output_sha256 is None else {status_parser.HASH_FIELD: request.output_sha256}),
        **webhook_fields(request.webhooks),
    }
    read = partial(_read_resume, request.execution_id)
    return Call("POST", "/resume", read, body, idempotency(request.idempotency_key))


def stop(kickoff_id: str) -> Call[bool]:
    """``POST /stop/{kickoff_id}``: not in the specification (observed dialect, POST /stop)."""
    return Call("POST", f"/stop/{path_segment(kickoff_id)}", _read_stop, body={})


def read(call: Call[T], answer: HttpResponse, mask: Mask = responses.unmasked) -> T:
    """Return what the answer says, or raise the one error that names what happened."""
    if 200 <= answer.status < 300 or answer.status in call.also:
        return call.read(answer, mask)
    raise refusal(call, answer, mask)


def refusal(call: Call[Any], answer: HttpResponse, mask: Mask) -> CrewError:
    """Name an answer that is not a 2xx."""
    detail = responses.detail(answer, mask) or _redirection(answer, mask)
    where = (answer.status, call.method, mask(call.path), detail)
    if QUOTA_TEXT in detail.lower():
        return CrewRateLimited(*where, responses.retry_after(answer))
    if call.starts_something and answer.status in GATEWAY_ERRORS:
        return CrewOutcomeUnknown(
            f"{call.method} {call.path} was answered {answer.status} ({detail}) after it was sent: "
            "whether the service acted on it is unknown",
            answer.status,
        )
    if answer.status == 422:
        names = [mask(name) for name in responses.missing_names(answer)]
        if not names and call.headers and KEY_TEXT.search(detail):
            return CrewKeyReused(*where)
        if names and "missing inputs" not in detail.lower():
            detail = f"Missing inputs: {', '.join(names)} ({detail})"
        return CrewMissingInputs(names, *where[:3], detail=detail)
    if answer.status == 429:
        return CrewRateLimited(*where, responses.retry_after(answer))
    if answer.status >= 500:
        return CrewServerError(*where, responses.retry_after(answer))
    named = {400: CrewBadRequest, 401: CrewUnauthorized, 403: CrewUnauthorized, 404: CrewNotFound}
    return named.get(answer.status, CrewApiError)(*where)


def _redirection(answer: HttpResponse, mask: Mask) -> str:
    location = mask(answer.headers.get("location", ""))
    return f"a redirect to {location[:200]} that is not followed, so that the token stays here" if location else ""


def redirect(call: Call[Any], url: str, answer: HttpResponse) -> str | None:
    """Return where to ask again: only a GET, only at the same origin, since the token goes along."""
    location = answer.headers.get("location")
    if answer.status not in (301, 302, 303, 307, 308) or not location or call.method != "GET":
        return None
    target = urljoin(url, location)
    return target if _origin(target) == _origin(url) else None


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    try:
        parts = urlsplit(url)
        default = {"http": 80, "https": 443}.get(parts.scheme)
        return parts.scheme, parts.hostname, parts.port or default
    except ValueError:
        return None


def _read_inputs(answer: HttpResponse, mask: Mask) -> CrewInputs:
    if responses.is_html(answer):
        said = responses.words(answer, mask)[:200]
        raise CrewWebPage(f"GET /inputs was answered with a web page: this is not a crew deployment ({said})")
    body = responses.json_of(answer, "GET /inputs", mask)
    names = _names(body, "inputs")
    if names is None:
        raise CrewProtocolError("GET /inputs gave no list of names under 'inputs'")
    # Not masked: they are compared, and an extra header's value may be part of a name.
    return CrewInputs(names, _names(body, "required"))


def _names(body: Any, field: str) -> list[str] | None:
    names = body.get(field) if isinstance(body, dict) else None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _read_executions(answer: HttpResponse, mask: Mask) -> list[Execution]:
    body = responses.json_of(answer, "GET /executions", mask)
    listed = body.get("executions") if isinstance(body, dict) else None
    found = [_listed(each, mask) for each in listed] if isinstance(listed, list) else [None]
    if None in found:
        raise CrewProtocolError("GET /executions gave no list of executions under 'executions'")
    return [execution for execution in found if execution]


def _listed(item: Any, mask: Mask) -> Execution | None:
    try:
        return Execution(
            kickoff_id=item["kickoff_id"],
            state=ExecutionState(item["status"]),
            raw_state=item["status"],
            error=item["error"] and mask(item["error"]),
            crew_task_id=item["task_id"],
            current_task=item["current_task"],
            completed_tasks=item["progress"]["completed_tasks"],
            total_tasks=item["progress"]["total_tasks"],
            execution_time=item["execution_time"],
            raw=item,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _read_kickoff(answer: HttpResponse, mask: Mask) -> str:
    body = posted(answer, "POST /kickoff", mask)
    kickoff_id = body.get("kickoff_id")
    if kickoff_id is None and QUOTA_TEXT in responses.detail(answer).lower():
        raise CrewRateLimited(answer.status, "POST", "/kickoff", responses.detail(answer, mask))
    if _can_be_polled(kickoff_id):
        return kickoff_id
    raise CrewOutcomeUnknown(
        f"POST /kickoff was answered {answer.status} without a kickoff_id that can be polled: "
        "the crew may be running under an id that is not known",
        answer.status,
    )


def _can_be_polled(kickoff_id: Any) -> TypeGuard[str]:
    try:
        return bool(path_segment(kickoff_id))
    except CrewInvalidInput:
        return False


def _read_resume(execution_id: str, answer: HttpResponse, mask: Mask) -> Resumed:
    body = posted(answer, "POST /resume", mask)
    status, message = (status_parser.text_or_none(body.get(name)) for name in ("status", "message"))
    kickoff_id = body.get("kickoff_id") or (execution_id if status else None)
    if not _can_be_polled(kickoff_id):
        raise CrewOutcomeUnknown(
            "POST /resume was answered with neither a status nor an id that can be polled: "
            "whether the answer was accepted is unknown",
            answer.status,
        )
    return Resumed(kickoff_id=kickoff_id, status=status, message=message and mask(message))


def _read_stop(answer: HttpResponse, mask: Mask) -> bool:
    """Trust a stop only where the service reports it with a word that the state table lists as final."""
    try:
        body = responses.json_of(answer, "POST /stop", mask)
    except CrewProtocolError:
        return False
    word = status_parser.text_or_none(body.get("status") if isinstance(body, dict) else None) or ""
    return status_parser.WORDS.get(word.lower()) is ExecutionState.ERROR


def posted(answer: HttpResponse, what: str, mask: Mask) -> Json:
    """Read the object that a POST was answered with; without one, what the POST did is unknown."""
    try:
        body = responses.json_of(answer, what, mask)
    except CrewProtocolError as error:
        body, problem = None, str(error)
    else:
        problem = f"{what} was answered with {type(body).__name__} instead of an object"
    if isinstance(body, dict):
        return body
    raise CrewOutcomeUnknown(f"{problem}; whether the service acted on the request is unknown", answer.status)
