"""Each endpoint as a value: the request, and how to read its response.

Requests work with both dialects, the specification's and that of live deployments; responses may be in either one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeGuard, TypeVar
from urllib.parse import quote, urlencode

from airflow_crew_provider import exceptions
from airflow_crew_provider.api import responses
from airflow_crew_provider.api.addresses import redirected, view_path
from airflow_crew_provider.api.requests import EXECUTION_ID, Kickoff, Resume, header_value, path_segment
from airflow_crew_provider.api.responses import HttpResponse, Mask
from airflow_crew_provider.api.status import (
    STOPPED,
    USAGE_FIELD,
    VIEW,
    StatusReader,
    is_number,
    read_status,
    state_of,
    text_or_none,
)
from airflow_crew_provider.api.values import is_kept, is_sha256
from airflow_crew_provider.models import (
    Execution,
    ExecutionState,
    ExpectedInputs,
    Json,
    Resumed,
    Started,
    TaskResult,
    UploadedFile,
    WrittenFile,
)

# --- calls ---


T = TypeVar("T")

KEY_TEXT = re.compile("idempotency.?key", re.IGNORECASE)
QUOTA_TEXT = "monthly execution limit reached"
# After a gateway error, the service behind the gateway may or may not have acted on the request.
GATEWAY_ERRORS = (502, 503, 504)
REDIRECTS = (301, 302, 303, 307, 308)
# The codes with which a request has certainly done nothing. Any other leaves the outcome of a POST unknown: a gateway
# may send 408 or 499 after it has passed the request on, and a service 406 after it has acted; a 409 may be about what
# an earlier delivery of the same request has done.
#
# These follow from the head or the size of a request, before it is passed on or acted on, whoever sends them:
REFUSED_UNREAD: dict[int, type[exceptions.CrewApiError]] = {
    407: exceptions.CrewRefused,  # a proxy wants credentials first
    411: exceptions.CrewRefused,  # the length of the body is missing
    413: exceptions.CrewTooLarge,  # the body is too large
    414: exceptions.CrewRefused,  # the path is too long
    421: exceptions.CrewRefused,  # this server does not serve the host
    425: exceptions.CrewRefused,  # the request might be a replay
    426: exceptions.CrewRefused,  # only another protocol is accepted
    429: exceptions.CrewRateLimited,  # too many requests
    431: exceptions.CrewRefused,  # the headers are too large
}
# These are the service's, but not as a page: if a request that was passed on gets no response, a gateway may ask
# another server for a page, which knows no such path (404) or takes no POST (405, with a named `error_page` of nginx).
REFUSED_BY_SERVICE: dict[int, type[exceptions.CrewApiError]] = {
    400: exceptions.CrewBadRequest,  # the request is not valid, or not in this state
    401: exceptions.CrewUnauthorized,  # the token is not valid
    403: exceptions.CrewUnauthorized,  # the token permits something else
    404: exceptions.CrewNotFound,  # the path or the id is unknown
    405: exceptions.CrewRefused,  # the path takes no POST
    410: exceptions.CrewRefused,  # the path or the id no longer exists
    415: exceptions.CrewRefused,  # the type of the body is not accepted
    422: exceptions.CrewMissingInputs,  # inputs are missing, or others were sent under the same key
    451: exceptions.CrewRefused,  # access is denied for legal reasons
}
TRANSIENT = (408, 425, 429)  # 4xx codes that mean the same whoever sends them


class Content(Protocol):
    """The bytes of a file to upload."""

    def read(self, size: int) -> bytes:
        """Return at most this many bytes; none at the end.

        :raises CrewFileError: the file cannot be read
        """


@dataclass(frozen=True)
class Upload:
    """A file to send as a form.

    :param name: the input's name
    :param filename: a label for the service
    :param size: in bytes
    """

    name: str
    filename: str
    size: int
    content: Content


@dataclass(frozen=True)
class Call(Generic[T]):
    """One exchange: the request, and how to read a 2xx response."""

    method: str
    path: str
    read: Callable[[HttpResponse, Mask], T]
    body: Json | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    polled: str | None = None  # the id in a status request
    target: str = field(default="", repr=False)  # the real path, if errors must not show it
    also: tuple[int, ...] = ()  # further status codes that `read` accepts
    starts_cold: bool = False  # whether the service may have to start first, which takes longer
    upload: Upload | None = field(default=None, repr=False)
    streamed: int | None = None  # the size of a body that is passed on as it arrives, in bytes

    @property
    def content(self) -> bytes | None:
        """The body as it is sent: JSON in UTF-8, because escapes would take up to three times the room.

        A service reads a lone surrogate, which UTF-8 cannot express, from its JSON escape: what replaces it here.
        """
        if self.body is None:
            return None
        return json.dumps(self.body, ensure_ascii=False).encode("utf-8", "backslashreplace")

    @property
    def starts_something(self) -> bool:
        """Whether sending this call twice could do harm; an uploaded file that is not used is deleted."""
        return self.method == "POST" and self.upload is None


def idempotency(key: str | None) -> dict[str, str]:
    """Return the header that lets a service recognize a repeated request."""
    return {"Idempotency-Key": header_value("The idempotency key", key)} if key else {}


def inputs() -> Call[ExpectedInputs]:
    """``GET /inputs`` (specification, section 4.1)."""
    return Call("GET", "/inputs", _read_inputs)


def kickoff(request: Kickoff) -> Call[Started]:
    """``POST /kickoff`` (specification, section 4.2)."""
    sent = request.checked()
    return Call("POST", "/kickoff", _read_kickoff, sent.body(), idempotency(sent.idempotency_key), starts_cold=True)


def upload(file: Upload) -> Call[UploadedFile]:
    """``POST /files`` (observed dialect, Files in). It starts nothing, so it may be repeated."""
    return Call("POST", "/files", _read_upload, starts_cold=True, upload=file)


def status(kickoff_id: str) -> Call[Execution]:
    """``GET /status/{kickoff_id}`` (specification, section 4.3)."""
    return Call("GET", f"/status/{path_segment(kickoff_id)}", partial(_read_status, kickoff_id), polled=kickoff_id)


def polls(kickoff_id: str) -> Call[Execution]:
    """``GET /status/{kickoff_id}`` for a wait, which sends it many times."""
    return replace(status(kickoff_id), read=StatusReader(kickoff_id))


def executions(state: str | None = None, limit: int = 20) -> Call[list[Execution]]:
    """``GET /executions``: only this project's crew service supports it."""
    query = {"state": str(state), "limit": str(limit)} if state else {"limit": str(limit)}
    return Call("GET", f"/executions?{urlencode(query)}", _read_executions)


def _of_execution(execution_id: str) -> str:
    return f"/executions/{path_segment(execution_id, EXECUTION_ID)}"


@dataclass(frozen=True)
class Details:
    """The response to `details`: the object, which is None if unchanged, and its ETag."""

    found: Json | None
    etag: str | None


def details(execution_id: str, etag: str | None = None) -> Call[Details]:
    """``GET /executions/{id}``: only this project's crew service supports it. Unchanged details are not sent again."""
    headers = {"If-None-Match": etag} if etag else {}
    return Call("GET", _of_execution(execution_id), _read_details, headers=headers, also=(304,))


def _of_details(execution_id: str, read: Callable[[Json, Mask], T]) -> Call[T]:
    return Call("GET", _of_execution(execution_id), lambda answer, mask: read(_details_in(answer, mask), mask))


def ended_tasks(execution_id: str) -> Call[list[TaskResult]]:
    """``GET /executions/{id}``: read the finished tasks in order, without their outputs."""
    return _of_details(execution_id, _ended_tasks)


def open_round(execution_id: str) -> Call[int | None]:
    """``GET /executions/{id}``: read the number of the open question; None if there is none or it is unknown."""
    return _of_details(execution_id, _open_round)


def files_of_question(execution_id: str) -> Call[list[WrittenFile]]:
    """``GET /executions/{id}``: read the newest files, apart from those of rejected drafts."""
    return _of_details(execution_id, _files_of_question)


def written_files(execution_id: str) -> Call[list[WrittenFile]]:
    """``GET /executions/{id}/files``: only this project's crew service supports it."""
    return Call("GET", f"{_of_execution(execution_id)}/files", _read_files)


def written_file(execution_id: str, file: WrittenFile, direction: str = "out") -> Call[None]:
    """``GET /executions/{id}/files/{name}``, whose body is passed on as it arrives.

    :param direction: ``in`` for a file that the caller has given
    """
    path = f"{_of_execution(execution_id)}/files/{quote(file.name, safe='/')}?version={file.version}"
    path += "&direction=in" if direction == "in" else ""
    return Call("GET", path, lambda answer, mask: None, streamed=file.size)


def resume(request: Resume) -> Call[Resumed]:
    """``POST /resume`` (specification, section 4.4)."""
    sent = request.checked()
    read = partial(_read_resume, sent.execution_id)
    return Call("POST", "/resume", read, sent.body(), idempotency(sent.idempotency_key), starts_cold=True)


# Status codes from a deployment that does not have an endpoint.
NOT_OFFERED = (404, 405, 501)
# Status codes from a service that does not support stopping, or that has nothing to stop.
CANNOT_STOP = (400, 404, 405, 409, 410, 422, 501)


def stop(kickoff_id: str) -> Call[bool]:
    """``POST /stop/{kickoff_id}``: not in the specification (observed dialect, POST /stop)."""
    also = (*CANNOT_STOP, *REDIRECTS)
    return Call("POST", f"/stop/{path_segment(kickoff_id)}", _read_stop, body={}, also=also)


# --- reading responses ---


def read(call: Call[T], answer: HttpResponse, mask: Mask = responses.unmasked) -> T:
    """Return the value of a response, or raise a specific error."""
    if 200 <= answer.status < 300 or answer.status in call.also:
        return call.read(answer, mask)
    raise refusal(call, answer, mask)


def refusal(call: Call[Any], answer: HttpResponse, mask: Mask) -> exceptions.CrewError:
    """Return the error for a response without a 2xx status code."""
    detail = responses.detail(answer, mask) or _redirection(answer, mask)
    where = (answer.status, call.method, mask(call.path), detail)
    if QUOTA_TEXT in detail.lower():
        return exceptions.CrewQuotaExceeded(*where)
    if call.starts_something and answer.status in GATEWAY_ERRORS:
        return exceptions.CrewOutcomeUnknown(
            f"{call.method} {call.path} returned {answer.status} ({detail}): "
            "it is unknown whether the service acted on it",
            answer.status,
        )
    if answer.status < 500 and responses.is_page(answer) and not _is_anybodys(call, answer.status):
        message = f"{call.method} {call.path} returned {answer.status} with a page that is not the API's ({detail})"
        if call.starts_something:
            return exceptions.CrewOutcomeUnknown(
                f"{message}: it is unknown whether the service acted on it", answer.status
            )
        return exceptions.CrewWebPage(message)
    if answer.status == 422:
        names = [mask(name) for name in responses.missing_names(answer)]
        if not names and call.headers and KEY_TEXT.search(detail):
            return exceptions.CrewKeyReused(*where)
        if names and "missing inputs" not in detail.lower():
            detail = f"Missing inputs: {', '.join(names)} ({detail})"
        return exceptions.CrewMissingInputs(names, *where[:3], detail=detail)
    if answer.status == 409 and (other := _continued_by(call, answer, mask)):
        return exceptions.CrewAlreadyContinued(*where, kickoff_id=other)
    if answer.status == 429:
        if (until := responses.budget_until(answer)) is not None:
            return exceptions.CrewQuotaExceeded(*where, responses.retry_after(answer), mask(until))
        return exceptions.CrewRateLimited(*where, responses.retry_after(answer))
    if answer.status >= 500:
        return exceptions.CrewServerError(*where, responses.retry_after(answer))
    kind = REFUSED_UNREAD.get(answer.status) or REFUSED_BY_SERVICE.get(answer.status, exceptions.CrewApiError)
    return kind(*where)


def _is_anybodys(call: Call[Any], status: int) -> bool:
    """Whether a status code counts even if its body is a page; a GET can be repeated until the page is gone."""
    return status in TRANSIENT or (call.method == "POST" and status in REFUSED_UNREAD)


def _continued_by(call: Call[Any], answer: HttpResponse, mask: Mask) -> str | None:
    """Return the id of the execution already continuing the one in the kickoff; None if it cannot be used or shown."""
    body = responses.json_or_none(answer) if call.body and "continueFrom" in call.body else None
    kickoff_id = body.get("kickoff_id") if isinstance(body, dict) else None
    return kickoff_id if _can_be_polled(kickoff_id) and mask(kickoff_id) == kickoff_id else None


def _redirection(answer: HttpResponse, mask: Mask) -> str:
    location = mask(answer.headers.get("location", ""))
    return f"a redirect to {location[:200]}, which is not followed, to protect the token" if location else ""


def redirect(call: Call[Any], url: str, answer: HttpResponse) -> str | None:
    """Return the URL to request instead; only for a GET to the same origin, because the request carries the token."""
    if answer.status not in REDIRECTS or call.method != "GET":
        return None
    place = redirected(url, answer.headers.get("location", ""))
    return place and place.url


def _read_inputs(answer: HttpResponse, mask: Mask) -> ExpectedInputs:
    body = responses.json_of(answer, "GET /inputs", mask)
    names = _names(body, "inputs")
    if names is None:
        raise exceptions.CrewProtocolError("GET /inputs returned no list of names under 'inputs'")
    # Not masked: these are compared, and an extra header's value may be part of a name.
    return ExpectedInputs(
        names, _names(body, "required"), continues=body.get("continues") is True, files=_names(body, "files")
    )


def _names(body: Any, field: str) -> list[str] | None:
    names = body.get(field) if isinstance(body, dict) else None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _read_upload(answer: HttpResponse, mask: Mask) -> UploadedFile:
    body = responses.json_of(answer, "POST /files", mask)
    url = body.get("url") if isinstance(body, dict) else None
    if not isinstance(url, str) or not url.strip():
        raise exceptions.CrewProtocolError("POST /files returned no address under 'url'")
    size = body.get("size")
    return UploadedFile(url, size if is_number(size) else None, text_or_none(body.get("sha256")))


def _read_status(kickoff_id: str, answer: HttpResponse, mask: Mask) -> Execution:
    return read_status(kickoff_id, responses.json_of(answer, "GET /status", mask), answer, mask)


def _read_executions(answer: HttpResponse, mask: Mask) -> list[Execution]:
    body = responses.json_of(answer, "GET /executions", mask)
    listed = body.get("executions") if isinstance(body, dict) else None
    rows = [_listed(each, mask) for each in listed] if isinstance(listed, list) else [None]
    if None in rows:
        raise exceptions.CrewProtocolError("GET /executions returned no list of executions under 'executions'")
    return [execution for execution in rows if execution]


def _read_details(answer: HttpResponse, mask: Mask) -> Details:
    etag = answer.headers.get("etag")
    return Details(None if answer.status == 304 else _details_in(answer, mask), etag)


def _details_in(answer: HttpResponse, mask: Mask) -> Json:
    """Read the details; they are not masked, because drafts have hashes: callers mask what they show."""
    body = responses.json_of(answer, "GET /executions", mask)
    if not isinstance(body, dict) or text_or_none(body.get("state")) is None:
        raise exceptions.CrewProtocolError("GET /executions/{id} returned no object with a state")
    return body


def _ended_tasks(execution: Json, mask: Mask) -> list[TaskResult]:
    listed = execution.get("tasks")
    left_out = execution.get("left_out")
    # If `tasks` is in `left_out`, the earliest ones are missing.
    if not isinstance(listed, list) or (isinstance(left_out, list) and "tasks" in left_out):
        return []
    ended = [each for each in listed if isinstance(each, dict) and each.get("state") == ExecutionState.COMPLETED]
    return [_ended_task(each, mask) for each in ended]


def _read_files(answer: HttpResponse, mask: Mask) -> list[WrittenFile]:
    body = responses.json_of(answer, "GET /executions/{id}/files", mask)
    listed = body.get("files") if isinstance(body, dict) else None
    if not isinstance(listed, list):
        raise exceptions.CrewProtocolError("GET /executions/{id}/files returned no list of files")
    out = [each for each in listed if not (isinstance(each, dict) and each.get("direction") == "in")]
    return [read_file(each) for each in out]


def read_file(value: Any) -> WrittenFile:
    """Read one file; its name is compared with paths, so it is not masked."""
    file = value if isinstance(value, dict) else {}
    name, sha256 = file.get("name"), file.get("sha256")
    version, size = file.get("version"), file.get("size")
    if not (isinstance(name, str) and type(version) is int and type(size) is int and size >= 0 and is_sha256(sha256)):
        raise exceptions.CrewProtocolError("GET /executions/{id}/files returned a file that cannot be read")
    kind, task_id = text_or_none(file.get("content_type")), text_or_none(file.get("task_id"))
    shown_in = file.get("round") if type(file.get("round")) is int else None
    is_draft = file.get("state") == "draft"
    return WrittenFile(name, version, size, str(sha256), kind, task_id, is_draft, shown_in, view_path(file.get("view")))


def _files_of_question(details: Json, mask: Mask) -> list[WrittenFile]:
    listed, number = details.get("files"), _open_round(details, mask)
    listed = listed if isinstance(listed, list) else []
    out = [each for each in listed if isinstance(each, dict) and each.get("direction") == "out"]
    return [file for file in map(read_file, out) if not file.is_draft or file.round in (None, number)]


def _open_round(details: Json, mask: Mask) -> int | None:
    listed = details.get("rounds")
    newest = listed[-1] if isinstance(listed, list) and listed else None
    if not isinstance(newest, dict) or newest.get("decided_at") is not None:
        return None
    number = newest.get("number")
    return number if type(number) is int else None


def _ended_task(task: Json, mask: Mask) -> TaskResult:
    seconds = task.get("seconds")
    name, agent = (text_or_none(task.get(each)) for each in ("name", "agent"))
    return TaskResult(
        task_id=None if name is None else mask(name),
        agent=None if agent is None else mask(agent),
        output=None,
        execution_time=seconds if is_number(seconds) and is_kept(seconds) else None,
    )


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


def _read_kickoff(answer: HttpResponse, mask: Mask) -> Started:
    body = responses.json_or_none(answer)
    kickoff_id = body.get("kickoff_id") if isinstance(body, dict) else None
    if kickoff_id is None and QUOTA_TEXT in responses.detail(answer).lower():
        raise exceptions.CrewQuotaExceeded(answer.status, "POST", "/kickoff", responses.detail(answer, mask))
    if _can_be_polled(kickoff_id):
        return Started(kickoff_id, view_path(answer.headers.get(VIEW.lower())))
    posted(answer, "POST /kickoff", mask)  # raises if there is no object at all
    raise exceptions.CrewOutcomeUnknown(
        f"POST /kickoff returned {answer.status} without a kickoff_id that can be polled: "
        "the crew may be running under an unknown id",
        answer.status,
    )


def _can_be_polled(kickoff_id: Any) -> TypeGuard[str]:
    try:
        return bool(path_segment(kickoff_id))
    except exceptions.CrewInvalidInput:
        return False


def _read_resume(execution_id: str, answer: HttpResponse, mask: Mask) -> Resumed:
    body = posted(answer, "POST /resume", mask)
    status, message = (text_or_none(body.get(name)) for name in ("status", "message"))
    kickoff_id = body.get("kickoff_id") or (execution_id if status else None)
    if kickoff_id in (None, execution_id):  # polling a new id will show an error
        refuse_error(body, answer, "POST /resume", mask)
    if not _can_be_polled(kickoff_id):
        raise exceptions.CrewOutcomeUnknown(
            "POST /resume returned neither a status nor an id that can be polled: "
            "it is unknown whether the answer was accepted",
            answer.status,
        )
    return Resumed(kickoff_id=kickoff_id, status=status, message=message and mask(message))


def _read_stop(answer: HttpResponse, mask: Mask) -> bool:
    """Return whether the execution was stopped; False if it was not, which only the API's JSON or a 405 can show.

    Only a word for "stopped" counts: a failure may refer to the stop request itself.
    """
    if answer.status == 405:
        return False
    if answer.status in REDIRECTS:  # e.g. to a login page
        elsewhere = _redirection(answer, mask)
        raise exceptions.CrewWebPage(
            f"POST /stop returned {answer.status} with a page that is not the API's ({elsewhere})"
        )
    body = responses.json_of(answer, "POST /stop", mask)
    if not isinstance(body, dict):
        raise exceptions.CrewProtocolError(f"POST /stop returned {type(body).__name__} instead of an object")
    return answer.status not in CANNOT_STOP and (text_or_none(body.get("status")) or "").lower() in STOPPED


def refuse_error(body: Json, answer: HttpResponse, what: str, mask: Mask) -> None:
    """Raise if the 2xx response to a POST reports an error, which leaves the outcome of the POST unknown."""
    word = text_or_none(body.get("status"))
    if word and state_of(word, live=False) in (ExecutionState.ERROR, ExecutionState.NOT_FOUND):
        raise exceptions.CrewOutcomeUnknown(
            f"{what} returned {answer.status} and reported an error ({responses.detail(answer, mask)}); "
            "it is unknown whether the service acted on the request",
            answer.status,
        )


def posted(answer: HttpResponse, what: str, mask: Mask) -> Json:
    """Read the object in the response to a POST; without one, the outcome of the POST is unknown."""
    try:
        body = responses.json_of(answer, what, mask)
    except exceptions.CrewProtocolError as error:
        body, problem = None, str(error)
    else:
        problem = f"{what} returned {type(body).__name__} instead of an object"
    if isinstance(body, dict):
        return body
    raise exceptions.CrewOutcomeUnknown(
        f"{problem}; it is unknown whether the service acted on the request", answer.status
    )


# --- many polls in one request: only this project's crew service supports this ---


BATCH_OFFER = "Crew-Batch-Status"  # a header in the response to a poll; its value is the path
STATUSES = "/statuses"
MOST_IDS = 200
LONGEST_IDS = 7000  # total characters; proxies refuse a request line over 8 KiB


def statuses(kickoff_ids: Collection[str]) -> Call[dict[str, HttpResponse]]:
    """Poll many ids; for each one, the response contains what a single poll would return, or nothing."""
    ids = ",".join(path_segment(each) for each in kickoff_ids)
    return Call("GET", f"{STATUSES}?ids={ids}", _read_statuses)


def portions(kickoff_ids: Collection[str]) -> Iterator[list[str]]:
    """Split ids into groups that fit one request."""
    portion: list[str] = []
    length = 0
    for each in kickoff_ids:
        size = len(path_segment(each)) + 1
        if portion and (len(portion) == MOST_IDS or length + size > LONGEST_IDS):
            yield portion
            portion, length = [], 0
        portion.append(each)
        length += size
    if portion:
        yield portion


def _read_statuses(answer: HttpResponse, mask: Mask) -> dict[str, HttpResponse]:
    body = responses.json_of(answer, f"GET {STATUSES}", mask)
    replies = body.get("statuses") if isinstance(body, dict) else None
    if not isinstance(replies, dict):
        raise exceptions.CrewProtocolError(f"GET {STATUSES} returned no object under 'statuses'")
    return {
        kickoff_id: HttpResponse(each["code"], {}, b"", each["body"], each.get(USAGE_FIELD))
        for kickoff_id, each in replies.items()
        if _is_answer(each)
    }


def _is_answer(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("code")) is int and isinstance(value.get("body"), dict)
