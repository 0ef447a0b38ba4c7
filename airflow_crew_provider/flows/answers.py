"""Sends an answer to a Flow through its question's channel: the address that came with the question, or the Flow's id.

The address is secret, and is used only if the connection allows its host. A callback accepts only one answer, so an
answer whose outcome is unknown may be sent again: the service refuses a second one.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from airflow_crew_provider.api.addresses import Place, allowed
from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.api.endpoints import Call, posted, refuse_error
from airflow_crew_provider.api.responses import HttpResponse, Mask
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.client.deployment import FLOW, CrewConnection, Deployment
from airflow_crew_provider.exceptions import CrewInvalidInput, CrewNotFound
from airflow_crew_provider.inbox import source
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress
from airflow_crew_provider.models import ExecutionState, Json, Resumed, shown
from airflow_crew_provider.stored_names import ALREADY
from airflow_crew_provider.wait.outcomes import CrewAnswerNotTaken, CrewTryFailed
from airflow_crew_provider.wait.poller import Poller


def respond(callback: Place, answer: ReviewAnswer) -> Call[Resumed]:
    """``POST`` an answer to a callback; the path contains a token, so errors do not show it."""
    where = f"to the callback of request {answer.crew_task_id}"
    return Call(
        "POST", where, partial(_read_answered, answer.execution_id), _body(answer), target=callback.target, also=(409,)
    )


def resume_feedback(flow_id: str, answer: ReviewAnswer) -> Call[Resumed]:
    """``POST /resume_feedback``: answer the Flow's current question."""
    body = {"flow_id": flow_id, **_body(answer)}
    read = partial(_read_answered, answer.execution_id)
    return Call("POST", "/resume_feedback", read, body, also=(409,), starts_cold=True)


def _body(answer: ReviewAnswer) -> Json:
    chosen = {"outcome": answer.outcome} if answer.outcome else {}
    return {"feedback": answer.human_feedback, "source": "airflow", **chosen}


def _read_answered(execution_id: str, answer: HttpResponse, mask: Mask) -> Resumed:
    what = "The answer to the Flow"
    body = posted(answer, what, mask)
    if answer.status != 409:
        refuse_error(body, answer, what, mask)
        return Resumed(execution_id, "accepted")
    request = body.get("request")
    fields = {**body, **request} if isinstance(request, dict) else body
    who, when = _name(fields.get("responded_by")), fields.get("responded_at")
    by = f" by {who}" if who else ""
    at = f" at {when}" if isinstance(when, str) and when else ""
    # The console may also answer by itself, so an answer without a name need not come from a person.
    unknown = "" if who else "; the service does not report by whom"
    return Resumed(execution_id, ALREADY, mask(f"the question was already answered{by}{at}{unknown}"))


def _name(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name") or value.get("email") or value.get("id")
    return str(value)[:200] if value else ""


BETWEEN_TWO_POLLS = 1.0  # seconds


def find_address(poller: Poller, answer: ReviewAnswer, *, lag: float = 0.0) -> AnswerAddress | None:
    """Return the address for the answer; None if the question is answered like a crew's.

    :param lag: how many seconds a status may lag behind the question; 0 if this answer may already have been
        sent, in which case the Flow may have continued
    :raises CrewAnswerNotTaken: the question was already answered, or the Flow has since asked another one
    :raises CrewTryFailed: the service does not show that the Flow is waiting for an answer
    """
    hook = poller.hook
    if hook.connection.flow_webhook_secret:
        if source.is_used_up(hook.crew_conn_id, answer.crew_task_id):
            raise CrewAnswerNotTaken(f"The question {answer.crew_task_id} was already answered; nothing was sent")
        stored = source.stored_address(hook.crew_conn_id, answer.crew_task_id)
        _refuse_after_another_question(hook, answer, stored)
        if stored is not None:
            return stored
    if hook.connection.kind != FLOW:
        return None
    address = _by_flow_id(poller, answer, lag)
    if hook.connection.flow_webhook_secret:
        _refuse_after_another_question(hook, answer, address)
    return address


def _refuse_after_another_question(hook: ConnectedCrew, answer: ReviewAnswer, address: AnswerAddress | None) -> None:
    """Refuse to answer by the Flow's id if the Flow has asked another question, which would get the answer."""
    ids = [answer.execution_id, *([address.flow_id] if address and address.flow_id else [])]
    if not source.asked(hook.crew_conn_id, ids).take_answer(answer.crew_task_id, address):
        raise CrewAnswerNotTaken(
            f"The Flow {answer.execution_id} has asked another question since {answer.crew_task_id}; nothing was sent"
        )


def _by_flow_id(poller: Poller, answer: ReviewAnswer, lag: float) -> AnswerAddress | None:
    """Poll until the Flow is paused; in any other state, a live deployment accepts an answer but ignores it.

    :param lag: how long to poll, in seconds; 0 accepts any state
    """
    began = time.time()
    problem: CrewNotFound | None = None
    while True:
        try:
            execution = poller.poll_patiently(answer.execution_id)
        except CrewNotFound as error:
            reason, problem = "it does not know the execution", error
        else:
            if not execution.is_live or execution.state is ExecutionState.PENDING:
                return AnswerAddress(flow_id=execution.flow_id) if execution.is_live and execution.flow_id else None
            reason, problem = f"the execution is {execution.state}", None
        if not lag:
            return None
        if time.time() - began >= lag:
            raise CrewTryFailed(
                f"The service does not show that the Flow {answer.execution_id} is waiting for an answer: {reason}. "
                "Nothing was sent; a retry of this task checks again"
            ) from problem
        time.sleep(min(BETWEEN_TWO_POLLS, lag))


def send(hook: ConnectedCrew, answer: ReviewAnswer, address: AnswerAddress) -> Resumed:
    """Send an answer once; if the question was answered elsewhere, return the service's reply."""
    callback = check(hook, address)
    if callback is not None:
        from airflow_crew_provider.client.client import Client

        receiver = _receiver(hook.connection, callback)
        return Client(receiver).send(respond(callback, answer), secrets=address.secrets)
    assert address.flow_id
    return hook.client.send(resume_feedback(address.flow_id, answer))


def check(hook: ConnectedCrew, address: AnswerAddress) -> Place | None:
    """Return where the callback is, None if there is none; refuse a host that the connection does not allow."""
    connection, url = hook.connection, address.callback_url
    if url is None and not address.flow_id:
        raise CrewInvalidInput("The webhook for this question had neither callback_url nor flow_id; nothing was sent")
    callback = None if url is None else allowed(url, connection.deployment.base_url, connection.callback_hosts)
    if url is not None and callback is None:
        raise CrewInvalidInput(
            f"The answer would go to a host that connection {shown(hook.crew_conn_id)} does not allow: neither its "
            "Host nor one of callback_hosts in its Extra. Nothing was sent"
        )
    return callback


def _receiver(connection: CrewConnection, callback: Place) -> Deployment:
    """Return the recipient of the answer, without the deployment's token and headers, which it must not receive."""
    own = connection.deployment
    return Deployment(base_url=callback.origin, timeout=own.kickoff_timeout, verify=own.verify, proxy=own.proxy)


def used_up(hook: ConnectedCrew, answer: ReviewAnswer) -> None:
    """Delete the address of an answered question."""
    if hook.connection.flow_webhook_secret and source.stored_address(hook.crew_conn_id, answer.crew_task_id):
        source.used_up(hook.crew_conn_id, answer.crew_task_id)
