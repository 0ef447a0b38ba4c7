"""Answers a Flow by the way its question came. The address is a secret, and is sent to hosts of the connection only.

A callback takes one answer. So one whose outcome is unknown may be sent again: the service refuses the second.
"""

from __future__ import annotations

import time
from urllib.parse import urlsplit, urlunsplit

from airflow.providers.common.compat.sdk import AirflowException

from airflow_crew_provider.client import Deployment
from airflow_crew_provider.compat import flow_variables
from airflow_crew_provider.core import flow_answers
from airflow_crew_provider.core.addresses import is_allowed
from airflow_crew_provider.core.flow_webhooks import AnswerAddress
from airflow_crew_provider.core.review import ReviewAnswer
from airflow_crew_provider.exceptions import CrewInvalidInput, CrewNotFound
from airflow_crew_provider.hooks.connection import FLOW, CrewConnection
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import ExecutionState, Resumed

BETWEEN_TWO_POLLS = 1.0  # seconds


def address_of(hook: CrewHook, answer: ReviewAnswer, *, lag: float = 0.0) -> AnswerAddress | None:
    """Return how the question is answered; None if in the way of a crew's.

    :param lag: for how many seconds a status may show what was before the question; 0 if this answer may have been sent
        before, after which the Flow goes on
    :raises CrewInvalidInput: it is answered
    :raises AirflowException: the service does not show what the Flow asks
    """
    if hook.connection.flow_webhook_secret:
        if flow_variables.is_used_up(hook.crew_conn_id, answer.crew_task_id):
            raise CrewInvalidInput(f"The question {answer.crew_task_id} was answered before; nothing was sent")
        stored = flow_variables.address_of(hook.crew_conn_id, answer.crew_task_id)
        if stored is not None:
            return stored
    return _by_flow_id(hook, answer, lag) if hook.connection.kind == FLOW else None


def _by_flow_id(hook: CrewHook, answer: ReviewAnswer, lag: float) -> AnswerAddress | None:
    """Look until the Flow is shown as paused: a live deployment takes a crew's answer to anything, and does nothing.

    :param lag: for how many seconds; 0 if whatever is shown will do
    """
    began = time.time()
    while True:
        try:
            seen = hook.poll_patiently(answer.execution_id)
        except CrewNotFound:
            shown = "it does not know the execution"
        else:
            if not seen.is_live or seen.state is ExecutionState.PENDING:
                return AnswerAddress(flow_id=seen.flow_id) if seen.is_live and seen.flow_id else None
            shown = f"the execution is {seen.state}"
        if not lag:
            return None
        if time.time() - began >= lag:
            raise AirflowException(
                f"The service does not show that the Flow {answer.execution_id} waits for an answer: {shown}. Nothing "
                "was sent; a retry of this task checks again"
            )
        time.sleep(min(BETWEEN_TWO_POLLS, lag))


def send(hook: CrewHook, answer: ReviewAnswer, address: AnswerAddress) -> Resumed:
    """Send an answer once; for a question that was answered elsewhere, return what the service says."""
    url = address.callback_url
    if url is not None:
        from airflow_crew_provider.client.client import Client

        call = flow_answers.respond(url, answer)
        return Client(_receiver(hook.connection, url)).send(call, secrets=address.secrets)
    assert address.flow_id
    return hook.client.send(flow_answers.resume_feedback(address.flow_id, answer))


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
    if hook.connection.flow_webhook_secret and flow_variables.address_of(hook.crew_conn_id, answer.crew_task_id):
        flow_variables.used_up(hook.crew_conn_id, answer.crew_task_id)
