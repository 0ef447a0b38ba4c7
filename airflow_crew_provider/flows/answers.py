"""Answers a Flow by the way its question came: by the address that came with it, or by the Flow's id.

The address is a secret, and is sent to hosts of the connection only. A callback takes one answer. So one whose outcome
is unknown may be sent again: the service refuses the second.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from airflow_crew_provider.api.addresses import is_allowed
from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.api.endpoints import Call, posted
from airflow_crew_provider.api.responses import HttpResponse, Mask
from airflow_crew_provider.client.deployment import FLOW, CrewConnection, Deployment
from airflow_crew_provider.exceptions import CrewInvalidInput, CrewNotFound
from airflow_crew_provider.flows import source
from airflow_crew_provider.flows.webhooks import AnswerAddress
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import ExecutionState, Json, Resumed
from airflow_crew_provider.wait.outcomes import CrewTryFailed
from airflow_crew_provider.wait.poller import Poller

ALREADY = "already_responded"


def respond(callback_url: str, answer: ReviewAnswer) -> Call[Resumed]:
    """Answer by a callback URL; its path holds a token, so no error shows it."""
    parts = urlsplit(callback_url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    shown = f"to the callback of request {answer.crew_task_id}"
    return Call("POST", shown, partial(_read_answered, answer.execution_id), _body(answer), target=target, also=(409,))


def resume_feedback(flow_id: str, answer: ReviewAnswer) -> Call[Resumed]:
    """``POST /resume_feedback``: answer what the Flow asks now."""
    body = {"flow_id": flow_id, **_body(answer)}
    return Call("POST", "/resume_feedback", partial(_read_answered, answer.execution_id), body, also=(409,))


def _body(answer: ReviewAnswer) -> Json:
    chosen = {"outcome": answer.outcome} if answer.outcome else {}
    return {"feedback": answer.human_feedback, "source": "airflow", **chosen}


def _read_answered(execution_id: str, answer: HttpResponse, mask: Mask) -> Resumed:
    body = posted(answer, "The answer to the Flow", mask)
    if answer.status != 409:
        return Resumed(execution_id, "accepted")
    request = body.get("request")
    fields = {**body, **request} if isinstance(request, dict) else body
    who = _name(fields.get("responded_by")) or "somebody else"
    when = fields.get("responded_at")
    at = f" at {when}" if isinstance(when, str) and when else ""
    return Resumed(execution_id, ALREADY, mask(f"the question was answered by {who}{at} already"))


def _name(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name") or value.get("email") or value.get("id")
    return str(value)[:200] if value else ""


BETWEEN_TWO_POLLS = 1.0  # seconds


def address_of(poller: Poller, answer: ReviewAnswer, *, lag: float = 0.0) -> AnswerAddress | None:
    """Return how the question is answered; None if in the way of a crew's.

    :param lag: for how many seconds a status may show what was before the question; 0 if this answer may have been sent
        before, after which the Flow goes on
    :raises CrewInvalidInput: it is answered
    :raises CrewTryFailed: the service does not show what the Flow asks
    """
    hook = poller.hook
    if hook.connection.flow_webhook_secret:
        if source.is_used_up(hook.crew_conn_id, answer.crew_task_id):
            raise CrewInvalidInput(f"The question {answer.crew_task_id} was answered before; nothing was sent")
        stored = source.address_of(hook.crew_conn_id, answer.crew_task_id)
        if stored is not None:
            return stored
    return _by_flow_id(poller, answer, lag) if hook.connection.kind == FLOW else None


def _by_flow_id(poller: Poller, answer: ReviewAnswer, lag: float) -> AnswerAddress | None:
    """Look until the Flow is shown as paused: a live deployment takes a crew's answer to anything, and does nothing.

    :param lag: for how many seconds; 0 if whatever is shown will do
    """
    began = time.time()
    while True:
        try:
            seen = poller.poll_patiently(answer.execution_id)
        except CrewNotFound:
            shown = "it does not know the execution"
        else:
            if not seen.is_live or seen.state is ExecutionState.PENDING:
                return AnswerAddress(flow_id=seen.flow_id) if seen.is_live and seen.flow_id else None
            shown = f"the execution is {seen.state}"
        if not lag:
            return None
        if time.time() - began >= lag:
            raise CrewTryFailed(
                f"The service does not show that the Flow {answer.execution_id} waits for an answer: {shown}. Nothing "
                "was sent; a retry of this task checks again"
            )
        time.sleep(min(BETWEEN_TWO_POLLS, lag))


def send(hook: CrewHook, answer: ReviewAnswer, address: AnswerAddress) -> Resumed:
    """Send an answer once; for a question that was answered elsewhere, return what the service says."""
    url = address.callback_url
    if url is not None:
        from airflow_crew_provider.client.client import Client

        call = respond(url, answer)
        return Client(_receiver(hook.connection, url)).send(call, secrets=address.secrets)
    assert address.flow_id
    return hook.client.send(resume_feedback(address.flow_id, answer))


def check(hook: CrewHook, address: AnswerAddress) -> None:
    """Refuse an address at a host that the connection does not allow, before anything is sent."""
    connection, url = hook.connection, address.callback_url
    if url is not None and not is_allowed(url, connection.deployment.base_url, connection.callback_hosts):
        raise CrewInvalidInput(
            f"The answer would go to a host that connection {hook.crew_conn_id!r} does not allow: neither its Host nor "
            "one of callback_hosts in its Extra. Nothing was sent"
        )
    if url is None and not address.flow_id:
        raise CrewInvalidInput("The webhook of this question gave neither callback_url nor flow_id; nothing was sent")


def _receiver(connection: CrewConnection, url: str) -> Deployment:
    """Return who takes the answer; the deployment's own token and headers stay here."""
    parts, own = urlsplit(url), connection.deployment
    origin = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    return Deployment(base_url=origin, timeout=own.kickoff_timeout, verify=own.verify, proxy=own.proxy)


def used_up(hook: CrewHook, answer: ReviewAnswer) -> None:
    """Remove the address of a question that is answered."""
    if hook.connection.flow_webhook_secret and source.address_of(hook.crew_conn_id, answer.crew_task_id):
        source.used_up(hook.crew_conn_id, answer.crew_task_id)
