"""The endpoint for a Flow's question: it verifies the signature, stores the question and resumes the waiting tasks.

A question is stored under each id in its webhook, so it can arrive before any task waits for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, HTTPException, Path, Request

from airflow_crew_provider.api.addresses import allowed, base_url, hosts
from airflow_crew_provider.client.deployment import flow_secret
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.inbox import flow_webhooks as webhooks
from airflow_crew_provider.inbox import store
from airflow_crew_provider.inbox.app import KNOWN, TAKEN, Answer, answered, json_body, raw_body, resume_tasks
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.inbox.store import DeferredTask, connection_of, store_question
from airflow_crew_provider.models import Json
from airflow_crew_provider.wait.watch import PENDING, Outcome


@dataclass(frozen=True)
class FlowSender:
    """A deployment whose webhooks are accepted, as configured in its connection."""

    crew_conn_id: str
    base_url: str
    secret: str = field(repr=False)
    callback_hosts: tuple[str, ...] = ()


def sender(crew_conn_id: str) -> FlowSender | None:
    """Look up the sender; return None if the connection does not exist, has no secret or is invalid."""
    connection, extra = connection_of(crew_conn_id) or (None, {})
    secret = flow_secret(extra)
    if connection is None or secret is None:
        return None
    try:
        base, others = base_url(connection.host, connection.port, connection.schema), hosts(extra.get("callback_hosts"))
    except ValueError:  # the reason is not disclosed to the sender
        return None
    return FlowSender(crew_conn_id, base, secret, others)


FOREIGN_HOST = Answer(422, "the callback_url is on a host that the connection does not allow")
NO_QUESTION = Answer(200, "this is not a question; nothing changed")

router = APIRouter()


async def signed_body(request: Request) -> bytes:
    """Read the body, which is needed to verify the signature, but only if the request has a recent one."""
    if not webhooks.is_recent(request.headers, now=time.time()):
        raise _unproven()
    return await raw_body(request)


SignedBody = Annotated[bytes, Depends(signed_body)]


# Look up the connection after reading the body, so that a large or slow body does not reveal whether it exists.
def flow_sender(connection: Annotated[str, Path(max_length=250)], raw: SignedBody, request: Request) -> FlowSender:
    """Return the connection's deployment if it signed the request."""
    verified = sender(connection)
    if verified is None or not webhooks.is_signed(verified.secret, request.headers, raw, now=time.time()):
        raise _unproven()
    return verified


def _unproven() -> HTTPException:
    return HTTPException(401, "Unknown address, or the signature is invalid or too old")


@router.post("/flow/{connection}")
def flow_question(
    sender: Annotated[FlowSender, Depends(flow_sender)], raw: SignedBody, afterwards: BackgroundTasks
) -> dict[str, str]:
    """Store the question of a Flow that is waiting for a person, from a webhook signed by the console."""
    try:
        question = webhooks.read(json_body(raw))
    except CrewProtocolError as error:
        raise HTTPException(422, str(error)) from None
    if question is None:
        return answered(NO_QUESTION)
    answer = take(sender, *question)
    if answer is TAKEN:
        afterwards.add_task(wake, sender, question[0])
    return answered(answer)


def take(sender: FlowSender, question: FlowQuestion, address: AnswerAddress) -> Answer:
    """Store a question, unless it is already stored; refuse it if its answer would go to a host that is not allowed."""
    url = address.callback_url
    if url is not None and allowed(url, sender.base_url, sender.callback_hosts) is None:
        return FOREIGN_HOST
    return TAKEN if store_question(sender.crew_conn_id, question, address, datetime.now(UTC)) else KNOWN


async def wake(sender: FlowSender, question: FlowQuestion) -> None:
    """Resume the tasks that are waiting for this execution."""

    def waiting() -> list[DeferredTask]:
        return store.waiting_for(question.ids)

    def event_for(waiting: DeferredTask) -> Json | None:
        kickoff_id = waiting.kwargs.get("kickoff_id")
        same = waiting.kwargs.get("crew_conn_id") == sender.crew_conn_id and kickoff_id in question.ids
        if not same or waiting.kwargs.get("wait_past_pending"):
            return None
        return Outcome(PENDING, str(kickoff_id), crew_task_id=question.id).to_event()

    await resume_tasks(waiting, event_for)
