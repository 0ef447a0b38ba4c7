"""The inbox over HTTP. Airflow mounts plugins without authentication, so this module authenticates each request.

A request without a valid credential is refused before its body is read, unless the body is needed for the check, as it
is for a signature. A message is stored before it is acknowledged; then the waiting task is resumed. No webhook can
approve anything: a question only ends a wait with the state pending, and a report of the crew's success only makes a
worker poll the status.

`inbox_app` combines routers: the one for registrations is in this module, the others are in `assets` and `flows`. The
dependencies of a route authenticate a request before its function runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from airflow_crew_provider.api.responses import BodyTooLarge, HttpResponse, acollect, json_of
from airflow_crew_provider.compat import deferral
from airflow_crew_provider.compat.encryption import NotDecrypted
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.inbox import store as stored
from airflow_crew_provider.inbox.messages import CREW, HumanInputRequest, is_of_another, matches
from airflow_crew_provider.inbox.rows import RegisteredTask
from airflow_crew_provider.inbox.store import DeferredTask, InboxStore
from airflow_crew_provider.models import Json
from airflow_crew_provider.wait.watch import PENDING, SEEN, Outcome

EventFor = Callable[[DeferredTask], Json | None]

log = logging.getLogger(__name__)

LARGEST_BODY = 1024 * 1024  # bytes
BODY_SECONDS = 30.0
# Keep reading a body that is too large: a peer does not read a response while it is sending.
DRAINED, DRAINING_SECONDS = 15 * LARGEST_BODY, 5.0
WOKEN = "woken by the crew's webhook"


class Answer(NamedTuple):
    """The response to a webhook."""

    status: int
    said: str


TAKEN = Answer(200, "taken")
KNOWN = Answer(200, "already known")
LATE = Answer(200, "too late; nothing changed")
RETIRED = Answer(401, "this address is no longer valid")
FOREIGN = Answer(422, "this is about another execution")


def take_question(address: RegisteredTask, question: HumanInputRequest) -> Answer:
    """Store a question for a person, unless it is already stored."""
    with stored.locked_store(address) as store:
        result = _judge_question(store, question)
        if result is TAKEN:
            store.store(store.messages.asking(question))
    return result


def take_progress(address: RegisteredTask, kind: str, body: Json) -> Answer:
    """Store progress; store the crew's success only once."""
    with stored.locked_store(address) as store:
        if is_of_another({body["kickoff_id"]}, store.task.root, store.task.kickoff_id):
            return FOREIGN
        if store.over or (kind == CREW and store.messages.succeeded):
            return LATE
        store.store(store.messages.with_progress(kind, body))
    return TAKEN


def _judge_question(store: InboxStore, question: HumanInputRequest) -> Answer:
    if is_of_another(question.ids, store.task.root, store.task.kickoff_id):
        return FOREIGN
    if question.task_id in store.messages.asked:
        return KNOWN
    if store.over or store.messages.full:
        return LATE
    return RETIRED if store.replaced else TAKEN


def asked(address: RegisteredTask, question: HumanInputRequest) -> EventFor:
    """Return a function that builds the event for a task, or returns None if it is not waiting for the question."""

    def event_for(waiting: DeferredTask) -> Json | None:
        kickoff_id = waiting.kwargs.get("kickoff_id")
        polls_here = (waiting.kwargs.get("inbox") or {}).get("registration") == address.registration.id
        if not polls_here or kickoff_id not in question.ids:
            return None
        return Outcome(PENDING, kickoff_id, crew_task_id=question.task_id).to_event()

    return event_for


def succeeded(kickoff_id: str) -> EventFor:
    """Return a function that builds the event for a task, or returns None if it is not waiting for the execution."""

    def event_for(waiting: DeferredTask) -> Json | None:
        same = waiting.kwargs.get("kickoff_id") == kickoff_id
        return Outcome(SEEN, kickoff_id, WOKEN).to_event() if same else None

    return event_for


async def wake(address: RegisteredTask, mark: str, event_for: EventFor) -> None:
    """Resume the waiting tasks in the registration's DAG run."""
    await resume_tasks(lambda: stored.waiting(address, mark), event_for)


async def resume_tasks(find: Callable[[], list[DeferredTask]], event_for: EventFor) -> None:
    """Resume the tasks that `find` returns; if this fails, their next poll finds the stored message."""
    try:
        for waiting in await run_in_threadpool(find):
            event = event_for(waiting)
            if event is not None:
                await asyncio.sleep(deferral.NOTICED_AFTER - (datetime.now(UTC) - waiting.since).total_seconds())
                await run_in_threadpool(stored.wake, waiting, event)
                log.info("A webhook resumed task %s of DAG run %s", waiting.task_id, waiting.run_id)
    except Exception:
        log.exception("A webhook was stored, but the waiting tasks could not be resumed; their next poll will find it")


Id = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{20,64}$")]


def asker(registration_id: Id, authorization: Annotated[str, Header()] = "") -> RegisteredTask:
    """Return the registered task whose bearer token the request contains."""
    address = stored.find(registration_id)
    scheme, _, token = authorization.partition(" ")
    proven = scheme.lower() == "bearer" and matches(token.strip(), address.registration.human_input if address else "")
    return _proven(address, proven)


def teller(registration_id: Id, capability: Annotated[str, Path(max_length=100)]) -> RegisteredTask:
    """Return the registered task whose progress URL the request uses."""
    address = stored.find(registration_id)
    return _proven(address, matches(capability, address.registration.progress if address else ""))


def _proven(address: RegisteredTask | None, proven: bool) -> RegisteredTask:
    if address is None or not proven:
        raise unknown()
    return address


def unknown() -> HTTPException:
    """Return the error for an unknown address or a wrong credential."""
    return HTTPException(401, "Unknown address or wrong credential", {"WWW-Authenticate": "Bearer"})


async def raw_body(request: Request) -> bytes:
    """Read the body, up to a maximum size and within a time limit."""
    length = request.headers.get("content-length", "0")
    announced = length.isdecimal() and int(length[:20]) > LARGEST_BODY
    too_large = HTTPException(413, f"The body is larger than {LARGEST_BODY} bytes", {"Connection": "close"})
    try:
        async with asyncio.timeout(DRAINING_SECONDS if announced else BODY_SECONDS):
            return await acollect(request.stream(), LARGEST_BODY, DRAINED)
    except BodyTooLarge:
        raise too_large from None
    except TimeoutError:
        late = HTTPException(408, f"The body did not arrive within {BODY_SECONDS:.0f} s")
        raise too_large if announced else late from None


async def body_of(request: Request) -> Any:
    """Read the body as JSON."""
    return json_body(await raw_body(request))


def json_body(body: bytes) -> Any:
    """Parse JSON; raise an HTTP 422 error if it is invalid."""
    try:
        return json_of(HttpResponse(200, {}, body), "The webhook")
    except CrewProtocolError:
        raise HTTPException(422, "The body is not JSON") from None


Body = Annotated[Any, Depends(body_of)]


router = APIRouter()


@router.post("/human-input/{registration_id}")
def human_input(
    address: Annotated[RegisteredTask, Depends(asker)], body: Body, afterwards: BackgroundTasks
) -> dict[str, str]:
    """Store the question of a crew task that is waiting for a person."""
    try:
        question = HumanInputRequest.read(body)
    except CrewProtocolError as error:
        raise HTTPException(422, str(error)) from None
    result = take_question(address, question)
    if result is TAKEN:
        afterwards.add_task(wake, address, address.registration.id, asked(address, question))
    return answered(result)


@router.post("/progress/{registration_id}/{capability}/{kind}")
def progress(
    address: Annotated[RegisteredTask, Depends(teller)],
    kind: Literal["task", "step", "crew"],
    body: Body,
    afterwards: BackgroundTasks,
) -> dict[str, str]:
    """Record that a task or step finished, or that the crew succeeded."""
    if not isinstance(body, dict) or not isinstance(body.get("kickoff_id"), str):
        raise HTTPException(422, "The webhook is not an object with a kickoff_id")
    result = take_progress(address, kind, body)
    if result is TAKEN and kind == CREW:
        afterwards.add_task(wake, address, body["kickoff_id"], succeeded(body["kickoff_id"]))
    return answered(result)


def answered(answer: Answer) -> dict[str, str]:
    """Return the response body for an answer; raise an HTTP error if its status is not 200."""
    if answer.status != 200:
        raise HTTPException(answer.status, answer.said)
    return {"status": answer.said}


def inbox_app(routers: Iterable[APIRouter]) -> FastAPI:
    """Build the application from these routers."""
    app = FastAPI(title="Crew inbox", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(NotDecrypted, _not_stored)
    for each in routers:
        app.include_router(each)
    return app


def _not_stored(request: Request, error: Exception) -> JSONResponse:
    """Return a 503, so that the sender tries again, because this process cannot decrypt the stored records."""
    log.error("A webhook could not be stored: %s", error)
    return JSONResponse({"detail": "The webhook could not be stored"}, 503)
