"""The inbox as HTTP. Airflow mounts plugins without authentication, so each request is authenticated here.

A request without a valid credential is refused before its body is read; what is acknowledged is stored.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, Literal

from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException, Path, Request
from starlette.responses import JSONResponse

from airflow_crew_provider.compat import flow_store
from airflow_crew_provider.compat.encryption import NotDecrypted
from airflow_crew_provider.compat.flow_store import FlowSender
from airflow_crew_provider.core import flow_webhooks
from airflow_crew_provider.core.capped_body import BodyTooLarge, acollect
from airflow_crew_provider.core.inbox_addresses import matches
from airflow_crew_provider.core.inbox_messages import CREW, HumanInputRequest, completed_id
from airflow_crew_provider.core.responses import HttpResponse, json_of
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.inbox import crew, flow, store
from airflow_crew_provider.inbox.receiving import Result, asked, succeeded, take_progress, take_question, wake
from airflow_crew_provider.inbox.records import RegisteredTask

LARGEST_BODY = 1024 * 1024  # bytes
BODY_SECONDS = 30.0
ANSWERS = {
    Result.TAKEN: (200, "taken"),
    Result.KNOWN: (200, "known already"),
    Result.LATE: (200, "too late, nothing changes"),
    Result.RETIRED: (401, "this address is no longer valid"),
    Result.FOREIGN: (422, "this is about another execution"),
    Result.FOREIGN_HOST: (422, "the callback_url is at a host that the connection does not allow"),
    Result.NO_QUESTION: (200, "this asks nothing, nothing changes"),
    Result.NO_ASSET: (404, "no DAG uses the asset of this connection, nothing is kept"),
}

log = logging.getLogger(__name__)

app = FastAPI(title="Crew inbox", docs_url=None, redoc_url=None, openapi_url=None)


@app.exception_handler(NotDecrypted)
def not_stored(request: Request, error: NotDecrypted) -> JSONResponse:
    """Let the sender try again: what is stored beside it cannot be read by this process."""
    log.error("A webhook could not be stored: %s", error)
    return JSONResponse({"detail": "The webhook could not be stored"}, 503)


Id = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{20,64}$")]


def asker(registration_id: Id, authorization: Annotated[str, Header()] = "") -> RegisteredTask:
    """Return the task of the registration whose bearer token the request carries."""
    address = store.find(registration_id)
    scheme, _, token = authorization.partition(" ")
    proven = scheme.lower() == "bearer" and matches(token.strip(), address.registration.human_input if address else "")
    return _proven(address, proven)


def teller(registration_id: Id, capability: Annotated[str, Path(max_length=100)]) -> RegisteredTask:
    """Return the task of the registration whose progress URL the request uses."""
    address = store.find(registration_id)
    return _proven(address, matches(capability, address.registration.progress if address else ""))


def _proven(address: RegisteredTask | None, proven: bool) -> RegisteredTask:
    if address is None or not proven:
        raise _unknown()
    return address


def flow_sender(connection: Annotated[str, Path(max_length=250)]) -> FlowSender:
    """Return the deployment of the connection, if its webhooks are taken."""
    sender = flow_store.sender(connection)
    if sender is None:
        raise _unproven()
    return sender


def crew_sender(
    connection: Annotated[str, Path(max_length=250)], capability: Annotated[str, Path(max_length=100)]
) -> str:
    """Return the connection whose crew reports, if the address holds its secret."""
    if not crew.is_proven(connection, capability):
        raise _unknown()
    return connection


def _unknown() -> HTTPException:
    return HTTPException(401, "Unknown address, or the credential is not its own", {"WWW-Authenticate": "Bearer"})


def _unproven() -> HTTPException:
    return HTTPException(401, "Unknown address, or the signature is not valid or too old")


async def raw_body(request: Request) -> bytes:
    """Read the body, up to a size and within a time."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _capped(request)
    except TimeoutError:
        raise HTTPException(408, f"The body did not arrive within {BODY_SECONDS:.0f} s") from None


async def body_of(request: Request) -> Any:
    """Read the body as JSON."""
    return _json(await raw_body(request))


def _json(body: bytes) -> Any:
    try:
        return json_of(HttpResponse(200, {}, body), "The webhook")
    except CrewProtocolError:
        raise HTTPException(422, "The body is not JSON") from None


async def _capped(request: Request) -> bytes:
    length = request.headers.get("content-length", "0")
    too_large = HTTPException(413, f"The body is larger than {LARGEST_BODY} bytes", {"Connection": "close"})
    if length.isdecimal() and int(length[:20]) > LARGEST_BODY:
        raise too_large
    try:
        return await acollect(request.stream(), LARGEST_BODY)
    except BodyTooLarge:
        raise too_large from None


Body = Annotated[Any, Depends(body_of)]


@app.post("/human-input/{registration_id}")
def human_input(
    address: Annotated[RegisteredTask, Depends(asker)], body: Body, afterwards: BackgroundTasks
) -> dict[str, str]:
    """A task of the crew waits for a person."""
    try:
        question = HumanInputRequest.read(body)
    except CrewProtocolError as error:
        raise HTTPException(422, str(error)) from None
    result = take_question(address, question)
    if result is Result.TAKEN:
        afterwards.add_task(wake, address, address.registration.id, asked(address, question))
    return _answered(result)


@app.post("/progress/{registration_id}/{capability}/{kind}")
def progress(
    address: Annotated[RegisteredTask, Depends(teller)],
    kind: Literal["task", "step", "crew"],
    body: Body,
    afterwards: BackgroundTasks,
) -> dict[str, str]:
    """A task or a step is done, or the crew has succeeded."""
    if not isinstance(body, dict) or not isinstance(body.get("kickoff_id"), str):
        raise HTTPException(422, "The webhook is not an object with a kickoff_id")
    result = take_progress(address, kind, body)
    if result is Result.TAKEN and kind == CREW:
        afterwards.add_task(wake, address, body["kickoff_id"], succeeded(body["kickoff_id"]))
    return _answered(result)


@app.post("/flow/{connection}")
def flow_question(
    sender: Annotated[FlowSender, Depends(flow_sender)],
    raw: Annotated[bytes, Depends(raw_body)],
    request: Request,
    afterwards: BackgroundTasks,
) -> dict[str, str]:
    """A Flow waits for a person: the webhook that the console signs."""
    if not flow.is_proven(sender, request.headers, raw):
        raise _unproven()
    try:
        asked = flow_webhooks.read(_json(raw))
    except CrewProtocolError as error:
        raise HTTPException(422, str(error)) from None
    if asked is None:
        return _answered(Result.NO_QUESTION)
    result = flow.take(sender, *asked)
    if result is Result.TAKEN:
        afterwards.add_task(flow.wake, sender, asked[0])
    return _answered(result)


@app.post("/crew/{connection}/{capability}")
def crew_completed(crew_conn_id: Annotated[str, Depends(crew_sender)], body: Body) -> dict[str, str]:
    """A crew has succeeded, whoever started it."""
    try:
        return _answered(crew.take(crew_conn_id, completed_id(body)))
    except CrewProtocolError as error:
        raise HTTPException(422, str(error)) from None


def _answered(result: Result) -> dict[str, str]:
    status, said = ANSWERS[result]
    if status != 200:
        raise HTTPException(status, said)
    return {"status": said}
