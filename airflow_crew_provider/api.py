"""Each endpoint as a value: how to ask, and how to read what comes back. No I/O.

Requests fit both dialects, the specification's and that of live deployments; answers of both are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeGuard, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from airflow_crew_provider import answers, statuses
from airflow_crew_provider.answers import Answer, Mask
from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewBadRequest,
    CrewError,
    CrewInvalidInput,
    CrewMissingInputs,
    CrewNotFound,
    CrewOutcomeUnknown,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
    CrewUnauthorized,
)
from airflow_crew_provider.models import (
    Execution,
    ExecutionState,
    HumanInputWebhook,
    Json,
    Kickoff,
    Resume,
    Resumed,
    Webhooks,
)

T = TypeVar("T")

LONGEST_ID = 2048
QUOTA_TEXT = "monthly execution limit reached"
# A gateway that gives up says nothing of what the service behind it did.
GATEWAY_ERRORS = (502, 503, 504)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One exchange: what to send, and how to read a 2xx answer."""

    method: str
    path: str
    read: Callable[[Answer, Mask], T]
    body: Json | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def starts_something(self) -> bool:
        """Whether sending it twice could do harm."""
        return self.method == "POST"


def inputs() -> Call[list[str]]:
    """``GET /inputs`` (specification, section 4.1)."""
    return Call("GET", "/inputs", _read_inputs)


def kickoff(request: Kickoff) -> Call[str]:
    """``POST /kickoff`` (specification, section 4.2)."""
    body: Json = {"inputs": request.inputs}
    if request.meta is not None:
        body["meta"] = request.meta
    body |= webhook_fields(request.webhooks)
    return Call("POST", "/kickoff", _read_kickoff, body, _idempotency(request.idempotency_key))


def status(kickoff_id: str) -> Call[Execution]:
    """``GET /status/{kickoff_id}`` (specification, section 4.3)."""
    path = f"/status/{path_segment(kickoff_id)}"
    return Call("GET", path, partial(_read_status, kickoff_id))


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
        "is_approve": request.is_approve,
        "isApprove": request.is_approve,
        **webhook_fields(request.webhooks),
    }
    read = partial(_read_resume, request.execution_id)
    return Call("POST", "/resume", read, body, _idempotency(request.idempotency_key))


def stop(kickoff_id: str) -> Call[bool]:
    """``POST /stop/{kickoff_id}``: not in the specification, seen on some deployments."""
    return Call("POST", f"/stop/{path_segment(kickoff_id)}", _read_stop, body={})


def path_segment(identifier: str) -> str:
    """Quote an id as one path segment; what cannot be one is refused."""
    if not isinstance(identifier, str) or not identifier or identifier in (".", ".."):
        raise CrewInvalidInput(f"{identifier!r} is not an id of the crew service; nothing was sent")
    try:
        size = len(identifier.encode())
    except UnicodeEncodeError:
        raise CrewInvalidInput("An id with half a surrogate pair cannot be sent; nothing was sent") from None
    if size > LONGEST_ID:
        raise CrewInvalidInput(f"An id of {size} bytes is longer than {LONGEST_ID}; nothing was sent")
    return quote(identifier, safe="")


def webhook_fields(webhooks: Webhooks | None) -> Json:
    """Return the body's fields for the webhooks that are set."""
    if webhooks is None:
        return {}
    fields: Json = {
        "taskWebhookUrl": webhooks.task,
        "stepWebhookUrl": webhooks.step,
        "crewWebhookUrl": webhooks.crew,
        **_human_input_field(webhooks.human_input),
    }
    return {name: value for name, value in fields.items() if value}


def _human_input_field(webhook: HumanInputWebhook | None) -> Json:
    if webhook is None:
        return {}
    if webhook.token:
        credential = {"strategy": "bearer", "token": webhook.token}
    elif webhook.username is not None:
        credential = {"strategy": "basic", "username": webhook.username, "password": webhook.password or ""}
    else:
        return {"humanInputWebhookUrl": webhook.url}
    return {"humanInputWebhook": {"url": webhook.url, "authentication": credential}}


def _idempotency(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key} if key else {}


def read(call: Call[T], answer: Answer, mask: Mask = answers.unmasked) -> T:
    """Return what the answer says, or raise the one error that names what happened."""
    if 200 <= answer.status < 300:
        return call.read(answer, mask)
    raise refusal(call, answer, mask)


def refusal(call: Call[Any], answer: Answer, mask: Mask) -> CrewError:
    """Name an answer that is not a 2xx."""
    detail = answers.detail(answer, mask) or _redirection(answer, mask)
    where = (answer.status, call.method, mask(call.path), detail)
    if QUOTA_TEXT in detail.lower():
        return CrewRateLimited(*where, answers.retry_after(answer))
    if call.starts_something and answer.status in GATEWAY_ERRORS:
        return CrewOutcomeUnknown(
            f"{call.method} {call.path} was answered {answer.status} ({detail}) after it was sent: "
            "whether the service acted on it is unknown",
            answer.status,
        )
    if answer.status == 422:
        return CrewMissingInputs([mask(name) for name in answers.missing_names(answer)], *where[:3], detail=detail)
    if answer.status == 429:
        return CrewRateLimited(*where, answers.retry_after(answer))
    if answer.status >= 500:
        return CrewServerError(*where, answers.retry_after(answer))
    named = {400: CrewBadRequest, 401: CrewUnauthorized, 403: CrewUnauthorized, 404: CrewNotFound}
    return named.get(answer.status, CrewApiError)(*where)


def _redirection(answer: Answer, mask: Mask) -> str:
    location = mask(answer.headers.get("location", ""))
    return f"a redirect to {location[:200]} that is not followed, so that the token stays here" if location else ""


def redirect(call: Call[Any], url: str, answer: Answer) -> str | None:
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


def _read_inputs(answer: Answer, mask: Mask) -> list[str]:
    body = answers.json_of(answer, "GET /inputs", mask)
    names = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CrewProtocolError("GET /inputs gave no list of names under 'inputs'")
    return [mask(name) for name in names]


def _read_status(kickoff_id: str, answer: Answer, mask: Mask) -> Execution:
    return statuses.execution(kickoff_id, answers.json_of(answer, "GET /status", mask), mask)


def _read_kickoff(answer: Answer, mask: Mask) -> str:
    body = _posted(answer, "POST /kickoff", mask)
    kickoff_id = body.get("kickoff_id")
    if kickoff_id is None and QUOTA_TEXT in answers.detail(answer).lower():
        raise CrewRateLimited(answer.status, "POST", "/kickoff", answers.detail(answer, mask))
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


def _read_resume(execution_id: str, answer: Answer, mask: Mask) -> Resumed:
    body = _posted(answer, "POST /resume", mask)
    status, message = (statuses.text_or_none(body.get(name)) for name in ("status", "message"))
    kickoff_id = body.get("kickoff_id") or (execution_id if status else None)
    if not _can_be_polled(kickoff_id):
        raise CrewOutcomeUnknown(
            "POST /resume was answered with neither a status nor an id that can be polled: "
            "whether the answer was taken is unknown",
            answer.status,
        )
    return Resumed(kickoff_id=kickoff_id, status=status, message=message and mask(message))


def _read_stop(answer: Answer, mask: Mask) -> bool:
    """Believe a stop only where the service says so in a word that the state table knows as an end."""
    try:
        body = answers.json_of(answer, "POST /stop", mask)
    except CrewProtocolError:
        return False
    word = statuses.text_or_none(body.get("status") if isinstance(body, dict) else None) or ""
    return statuses.WORDS.get(word.lower()) is ExecutionState.ERROR


def _posted(answer: Answer, what: str, mask: Mask) -> Json:
    """Read the object that a POST was answered with; without one, what the POST did is unknown."""
    try:
        body = answers.json_of(answer, what, mask)
    except CrewProtocolError as error:
        body, problem = None, str(error)
    else:
        problem = f"{what} was answered with {type(body).__name__} instead of an object"
    if isinstance(body, dict):
        return body
    raise CrewOutcomeUnknown(f"{problem}; whether the service acted on the request is unknown", answer.status)
