"""The inbox as read by a task in a worker or by its trigger: questions, and how to answer them.

A status does not always show that a crew is waiting for a person. So a wait may also read the messages for its
registration or, for a Flow, the questions stored under the ids of its execution. If a secrets backend is configured for
Variables, Airflow queries it first, as for any Variable.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from airflow.providers.common.compat.sdk import mask_secret

from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.compat import variables
from airflow_crew_provider.compat.encryption import unseal
from airflow_crew_provider.compat.task_instance import aget_shared, get_shared
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewNotFound
from airflow_crew_provider.inbox import rows
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.inbox.messages import HumanInputRequest, InboxMessages
from airflow_crew_provider.inbox.rows import TASK_FIELDS, Asked
from airflow_crew_provider.models import Execution, ExecutionState, Json, reason
from airflow_crew_provider.stored_names import MESSAGES_KEY
from airflow_crew_provider.wait.watch import Reply

log = logging.getLogger(__name__)


def get(key: str) -> Any:
    """Return the value of a Variable, or None if it does not exist."""
    return _value(variables.read(key))


def find(key: str) -> Any:
    """Return a Variable's value; None only if it certainly does not exist, because an answer depends on that.

    :raises CrewConnectionError: Airflow cannot read it at the moment
    """
    try:
        return _value(variables.find(key, rows.kept_until(datetime.now(UTC), rows.AFTER_ANSWER)))
    except Exception as error:
        problem = f"The inbox could not be read ({reason(error)})"
    raise CrewConnectionError(problem)


async def aget(key: str) -> Any:
    """Return the same as `get` without blocking the event loop."""
    return _value(await variables.aread(key))


def _value(text: str | None) -> Any:
    return json.loads(unseal(text)) if text else None


@dataclass(frozen=True)
class Reads:
    """The functions that read stored values."""

    variable: Callable[[str], Awaitable[Any]]
    xcom: Callable[..., Awaitable[Any]]  # for messages stored before an upgrade


async def _get(key: str) -> Any:
    return get(key)


async def _get_shared(**where: Any) -> Any:
    return get_shared(**where)


BLOCKING, AWAITING = Reads(_get, _get_shared), Reads(aget, aget_shared)


def has_asked(registration: str) -> bool:
    """Return whether a question has arrived for a registration; unlike progress, it proves its sender's token."""
    return bool(InboxMessages.of(find(rows.messages_key(registration)), registration).asked)


# --- answering a Flow's question ---


def stored_address(crew_conn_id: str, request_id: str) -> AnswerAddress | None:
    """Return the address for an answer; None if the question did not come through the inbox or was answered."""
    return _masked(rows.address_in(find(rows.answer_key(crew_conn_id, request_id))))


def _masked(address: AnswerAddress | None) -> AnswerAddress | None:
    for secret in address.secrets if address else ():
        mask_secret(secret)
    return address


def is_used_up(crew_conn_id: str, request_id: str) -> bool:
    """Return whether a question came through the inbox and was answered."""
    return bool(find(rows.answer_key(crew_conn_id, request_id)) == rows.USED)


def asked(crew_conn_id: str, ids: Iterable[str]) -> Asked:
    """Return what an execution with these ids has asked through the inbox."""
    return Asked.of(find(rows.questions_key(crew_conn_id, each)) for each in ids)


def used_up(crew_conn_id: str, request_id: str) -> None:
    """Remove a question's callback, but remember the question, so that a repeated webhook does not ask it again."""
    description = rows.kept_until(datetime.now(UTC), rows.AFTER_ANSWER)
    variables.write(rows.answer_key(crew_conn_id, request_id), json.dumps(rows.USED), description)


# --- questions ---


class Reader(Protocol):
    """Reads the questions of one kind of webhook."""

    def may_know(self, reply: Reply) -> bool:
        """Return whether there may be a question that the status does not show."""

    async def question(self, kickoff_id: str, reply: Reply | None, reads: Reads) -> Execution | None:
        """Return the execution with its open question, or None; ``reply`` is None if no status was requested."""


class InboxSource:
    """Questions in the inbox, from a crew or a Flow, that the status does not show.

    :param hook: the deployment's hook
    :param address: the registering task and its registration, from `registered_address`; None if the execution
        was not registered, in which case only a Flow's questions are found
    """

    def __init__(self, hook: ConnectedCrew, address: Json | None = None) -> None:
        self._readers: list[Reader] = [OfFlow(hook), *([OfRegistration(address)] if address else [])]

    async def read(self, kickoff_id: str, reply: Reply, *, blocking: bool) -> Reply:
        """Return the execution with a question that has arrived if the status does not show one, else the reply."""
        reads = BLOCKING if blocking else AWAITING
        for reader in self._readers:
            if reader.may_know(reply) and (question := await _safely(reader, kickoff_id, reply, reads)):
                return question
        return reply

    async def was_asked(self, kickoff_id: str) -> bool:
        """Return whether a question for a person has arrived and is open."""
        return any([await _safely(reader, kickoff_id, None, AWAITING) for reader in self._readers])


async def _safely(reader: Reader, kickoff_id: str, reply: Reply | None, reads: Reads) -> Execution | None:
    try:
        return await reader.question(kickoff_id, reply, reads)
    except Exception:
        log.warning("The inbox could not be read; polling continues", exc_info=True)
        return None


class OfRegistration:
    """The messages for the registration of a kickoff or resume."""

    def __init__(self, address: Json) -> None:
        self._address = address
        self._reported_progress = ""

    def may_know(self, reply: Reply) -> bool:
        """Return whether the crew may be waiting for a person although the status does not show it."""
        if isinstance(reply, CrewError):
            return isinstance(reply, CrewNotFound)
        if reply.state is ExecutionState.RUNNING:
            return reply.is_live  # its status may lag behind
        paused = reply.state is ExecutionState.PENDING and not reply.crew_task_id
        return paused or reply.state is ExecutionState.NOT_FOUND

    async def question(self, kickoff_id: str, reply: Reply | None, reads: Reads) -> Execution | None:
        """Return the execution with its open question; log new progress."""
        registration = self._address["registration"]
        arrived = await reads.variable(rows.messages_key(registration))
        if not arrived:
            before_upgrade = {name: self._address[name] for name in TASK_FIELDS}
            arrived = await reads.xcom(key=MESSAGES_KEY, **before_upgrade)
        messages = InboxMessages.of(arrived, registration)
        if reply is not None and messages.progress != self._reported_progress:
            self._reported_progress = messages.progress
            log.info("Reported by webhook for execution %s: %s", kickoff_id, messages.progress)
        newest: HumanInputRequest | None = messages.newest
        return newest.as_execution(kickoff_id) if newest and kickoff_id in newest.ids else None


class OfFlow:
    """A Flow's questions, which arrive as signed webhooks: a live status shows the pause but not the question.

    If the connection has no secret for such webhooks, none can have arrived.
    """

    def __init__(self, hook: ConnectedCrew) -> None:
        self._hook = hook
        self._told: list[str] = []

    def may_know(self, reply: Reply) -> bool:
        """Return whether a Flow is paused although its status does not show why."""
        paused = isinstance(reply, Execution) and reply.state is ExecutionState.PENDING and not reply.crew_task_id
        return paused and self._hook.connection.flow_webhook_secret is not None

    async def question(self, kickoff_id: str, reply: Reply | None, reads: Reads) -> Execution | None:
        """Return the execution with its newest question that takes an answer, found by any of its ids."""
        if self._hook.connection.flow_webhook_secret is None:
            return None
        execution = reply if isinstance(reply, Execution) else None
        ids = dict.fromkeys(each for each in (kickoff_id, execution and execution.flow_id) if each)
        question = await self._newest_open(ids, reads)
        return question.as_execution(kickoff_id) if question else None

    async def _newest_open(self, ids: Iterable[str], reads: Reads) -> FlowQuestion | None:
        crew_conn_id = self._hook.crew_conn_id
        asked = Asked.of([await reads.variable(rows.questions_key(crew_conn_id, each)) for each in ids])
        unanswerable = []
        for question in asked.newest_first:
            key = rows.answer_key(crew_conn_id, question.id)
            address = _masked(rows.address_in(await reads.variable(key)))
            if address is not None and asked.take_answer(question.id, address):
                return question
            if address is not None:
                unanswerable.append(question.id)
        if unanswerable and unanswerable != self._told:
            self._told = unanswerable
            log.info(
                "Nobody is asked the question %s again: its webhook had no callback_url, and an answer by the Flow's "
                "id reaches what the Flow has asked since. If it is still open, answer it in the console",
                ", ".join(unanswerable),
            )
        return None
