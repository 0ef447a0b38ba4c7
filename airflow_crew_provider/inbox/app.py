"""The inbox as HTTP. Airflow mounts plugins without authentication, so every request proves itself here.

Who cannot prove anything is refused before the body is read; what was acknowledged is in the database.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException, Path, Request

from airflow_crew_provider.answers import Answer, json_of
from airflow_crew_provider.boxes import CREW, Question
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.inbox import airflow_db
from airflow_crew_provider.inbox.airflow_db import Address
from airflow_crew_provider.inbox.taking import Result, asked, succeeded, take_progress, take_question, wake
from airflow_crew_provider.registrations import matches

LARGEST_BODY = 1024 * 1024  # bytes
BODY_SECONDS = 30.0
ANSWERS = {
    Result.TAKEN: (200, "taken"),
    Result.KNOWN: (200, "known already"),
    Result.LATE: (200, "too late, nothing changes"),
    Result.RETIRED: (401, "this address is no longer valid"),
    Result.FOREIGN: (422, "this is about another execution"),
}

app = FastAPI(title="Crew inbox", docs_url=None, redoc_url=None, openapi_url=None)

Id = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{20,64}$")]


def asker(registration_id: Id, authorization: Annotated[str, Header()] = "") -> Address:
    """Return the address of who shows the bearer token of a registration."""
    address = airflow_db.find(registration_id)
    scheme, _, token = authorization.partition(" ")
    proven = scheme.lower() == "bearer" and matches(token.strip(), address.registration.human_input if address else "")
    return _proven(address, proven)


def teller(registration_id: Id, capability: Annotated[str, Path(max_length=100)]) -> Address:
    """Return the address of who knows the progress URL of a registration."""
    address = airflow_db.find(registration_id)
    return _proven(address, matches(capability, address.registration.progress if address else ""))


def _proven(address: Address | None, proven: bool) -> Address:
    if address is None or not proven:
        raise HTTPException(401, "Unknown address, or the credential is not its own", {"WWW-Authenticate": "Bearer"})
    return address


async def body_of(request: Request) -> Any:
    """Read the body as JSON, up to a size and within a time."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _capped(request)
    except TimeoutError:
        raise HTTPException(408, f"The body did not arrive within {BODY_SECONDS:.0f} s") from None
    try:
        return json_of(Answer(200, {}, body), "The webhook")
    except CrewProtocolError:
        raise HTTPException(422, "The body is not JSON") from None


async def _capped(request: Request) -> bytes:
    length = request.headers.get("content-length", "0")
    too_large = HTTPException(413, f"The body is larger than {LARGEST_BODY} bytes", {"Connection": "close"})
    if length.isdecimal() and int(length[:20]) > LARGEST_BODY:
        raise too_large
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > LARGEST_BODY:
            raise too_large
    return bytes(read)


Body = Annotated[Any, Depends(body_of)]


@app.post("/human-input/{registration_id}")
def human_input(address: Annotated[Address, Depends(asker)], body: Body, afterwards: BackgroundTasks) -> dict[str, str]:
    """A task of the crew waits for a person."""
    try:
        question = Question.read(body)
    except CrewProtocolError as error:
        raise HTTPException(422, str(error)) from None
    result = take_question(address, question)
    if result is Result.TAKEN:
        afterwards.add_task(wake, address, address.registration.id, asked(address, question))
    return _answered(result)


@app.post("/progress/{registration_id}/{capability}/{kind}")
def progress(
    address: Annotated[Address, Depends(teller)],
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


def _answered(result: Result) -> dict[str, str]:
    status, said = ANSWERS[result]
    if status != 200:
        raise HTTPException(status, said)
    return {"status": said}
