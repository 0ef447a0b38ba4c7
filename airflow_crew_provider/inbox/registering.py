"""The inbox seen from a task: a registration before a POST, and what webhooks have reported since.

The inbox itself runs in the API server; the two meet in Variables, for which see `inbox.store`. A secrets backend that
is configured for Variables is asked first, as for any Variable.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from airflow.providers.common.compat.sdk import Variable, mask_secret
from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.encryption import seal, unseal
from airflow_crew_provider.compat.supervisor import is_awaitable
from airflow_crew_provider.compat.task_state import (
    aget_shared,
    found_or_none,
    get_shared,
    is_missing,
    pull_shared,
    push_shared,
    task_identity,
    task_state_of,
)
from airflow_crew_provider.compat.version import has_inbox
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewInvalidInput, CrewNotFound
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox.messages import (
    TASK_FIELDS,
    WORD,
    HumanInputRequest,
    InboxMessages,
    RegisteredTask,
    Registration,
    fresh,
    messages_key,
    registered,
    repeatable,
    secrets_of,
)
from airflow_crew_provider.models import Execution, ExecutionState, Json, Webhooks
from airflow_crew_provider.stored_names import MESSAGES_KEY, POSTED_KEY

log = logging.getLogger(__name__)


def keep_registration(task: RegisteredTask, messages: InboxMessages) -> None:
    """Store a registration, durably; what arrived under it before stays.

    :param messages: what had arrived where that was stored before an upgrade
    """
    put(task.key, task.as_dict(), task.description)
    if get(task.messages_key) is None:
        put(task.messages_key, messages.as_dict(), task.description, sealed=True)
    if task.newest:
        put(*task.newest, task.description)


def put(key: str, value: Json, said: str, *, sealed: bool = False) -> None:
    """Store a value and read it back: Airflow only logs that it failed to store a Variable."""
    text = json.dumps(value)
    Variable.set(key, seal(text) if sealed else text, description=said)
    if get(key) != value:
        raise RuntimeError(f"Airflow's Variable {key} does not read as it was stored")


def get(key: str) -> Any:
    """Return what stands under a name; None if there is nothing."""
    text: str | None = found_or_none(lambda: Variable.get(key))
    return json.loads(unseal(text)) if text else None


async def aget(key: str) -> Any:
    """Do what `get` does without blocking the event loop."""
    read = getattr(Variable, "aget", None)  # Airflow 3.4 reads without a thread, of which a triggerer has few
    if read is None or not is_awaitable():
        return await sync_to_async(get)(key)
    try:
        text = await read(key)
    except Exception as error:
        if is_missing(error):
            return None
        raise
    return json.loads(unseal(text)) if text else None


def box(registration_id: str) -> Any:
    """Return what arrived under a registration; None if nothing is stored for it."""
    return get(messages_key(registration_id))


async def abox(registration_id: str) -> Any:
    """Do what `box` does without blocking the event loop."""
    return await aget(messages_key(registration_id))


# --- a registration ---


def register(
    context: Any,
    hook: CrewHook,
    idempotency_key: str,
    execution_id: str | None = None,
    inbox_url: str | None = None,
) -> tuple[Registration, Webhooks]:
    """Register the next POST of this task with the inbox, durably; return what to remember and what to send.

    :param inbox_url: of a POST that is sent again and must be the same; else the connection's
    """
    check(hook)
    connection = hook.connection
    assert connection.inbox_url
    again = connection.idempotency_keys
    secret = repeatable(connection.deployment.token, idempotency_key) if again else fresh
    registration, webhooks = registered(inbox_url or connection.inbox_url, execution_id, secret)
    for hidden in secrets_of(webhooks):
        mask_secret(hidden)
    try:
        keep_registration(RegisteredTask(registration, **task_identity(context)), InboxMessages(registration.id))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    else:
        return registration, webhooks
    raise CrewConnectionError(f"The registration with the inbox could not be stored ({problem}); nothing was sent")


def check(hook: CrewHook) -> None:
    """Refuse where this Airflow has no inbox, or the connection does not say where it is."""
    if not has_inbox():
        raise CrewInvalidInput(
            "webhooks='inbox' needs Airflow 3: older ones have no place for the inbox. Nothing was sent; leave "
            "webhooks out and the wait goes by polling"
        )
    if not (hook.connection.inbox_url or "").startswith(("https://", "http://")):
        raise CrewInvalidInput(
            f"Connection {hook.crew_conn_id!r} has no inbox_url in its Extra, or one that is not an http or https "
            "address; webhooks='inbox' needs the inbox of this Airflow as the service sees it, e.g. "
            "https://airflow.example.com/crew-inbox. Nothing was sent"
        )


def posted(context: Any, registration: Json, kickoff_id: str, *, again: bool = False) -> None:
    """Record which kickoff id the service gave for a registration; ``again`` in a further try of the task."""
    kept = Registration.of(registration)
    if kept is None:
        return
    task = RegisteredTask(kept, **task_identity(context), kickoff_id=kickoff_id)
    keep_registration(task, _stored_before_an_upgrade(context, kept) if again else InboxMessages(kept.id))
    value = {"registration": kept.id, "kickoff_id": kickoff_id, "at": kept.at, **task_identity(context)}
    push_shared(context, POSTED_KEY, value)


def _stored_before_an_upgrade(context: Any, kept: Registration) -> InboxMessages:
    """Return what had arrived for an earlier try, which Airflow 3.3 kept in the state of its task."""
    return InboxMessages.of(task_state_of(context, MESSAGES_KEY).recall(), kept.id)


def address_of(context: Any, task: Any, kickoff_id: str) -> Json | None:
    """Find the upstream task that registered the execution with this id."""
    upstream = task.get_flat_relatives(upstream=True) if task.has_dag() else ()
    tasks = sorted(each.task_id for each in upstream if _may_have_registered(each))
    if not tasks:
        return None
    values = pull_shared(context, tasks, POSTED_KEY)
    found = [each for each in values if isinstance(each, dict) and each.get("kickoff_id") == kickoff_id]
    return max(found, key=lambda each: each["at"], default=None)


def _may_have_registered(task: Any) -> bool:
    """Whether a task may use the inbox: its `webhooks` are the word or a template."""
    webhooks = getattr(task, "webhooks", None) or (getattr(task, "partial_kwargs", None) or {}).get("webhooks")
    return isinstance(webhooks, str) and (webhooks == WORD or "{{" in webhooks)


# --- what has arrived ---


class InboxSource:
    """What has arrived in the inbox: the status of a live deployment does not show that it waits for a person.

    :param address: the XCom address of the task that registered
    """

    def __init__(self, address: Json) -> None:
        self._address = address
        self._reported_progress = ""

    def read(self, kickoff_id: str, reply: Execution | CrewError) -> Execution | CrewError:
        """Return the question that has arrived where the status does not show one."""
        return self._either(reply, self._box(), kickoff_id) if _may_hide_a_question(reply) else reply

    async def aread(self, kickoff_id: str, reply: Execution | CrewError) -> Execution | CrewError:
        """Do what `read` does without blocking the event loop."""
        return self._either(reply, await self._abox(), kickoff_id) if _may_hide_a_question(reply) else reply

    async def was_asked(self, kickoff_id: str) -> bool:
        """Whether a question to a person has arrived."""
        return _open_question(await self._abox(), kickoff_id) is not None

    def _either(self, reply: Execution | CrewError, messages: InboxMessages, kickoff_id: str) -> Execution | CrewError:
        if messages.progress != self._reported_progress:
            self._reported_progress = messages.progress
            log.info("By webhook of execution %s: %s", kickoff_id, messages.progress)
        question = _open_question(messages, kickoff_id)
        return reply if question is None else question.as_execution(kickoff_id)

    @property
    def _where(self) -> Json:
        """Where a message of before an upgrade stands."""
        return {"key": MESSAGES_KEY, **{name: self._address[name] for name in TASK_FIELDS}}

    def _box(self) -> InboxMessages:
        try:
            return self._read(box(self._address["registration"]) or get_shared(**self._where))
        except Exception:
            return self._unreadable()

    async def _abox(self) -> InboxMessages:
        try:
            return self._read(await abox(self._address["registration"]) or await aget_shared(**self._where))
        except Exception:
            return self._unreadable()

    def _read(self, value: Any) -> InboxMessages:
        return InboxMessages.of(value, self._address["registration"])

    def _unreadable(self) -> InboxMessages:
        log.warning("The inbox could not be read; polling continues", exc_info=True)
        return InboxMessages(self._address["registration"])


def _may_hide_a_question(reply: Execution | CrewError) -> bool:
    """Whether the execution may wait for a person although the status does not show it."""
    if isinstance(reply, CrewError):
        return isinstance(reply, CrewNotFound)
    if reply.state is ExecutionState.RUNNING:
        return reply.is_live  # its status may lag behind
    return reply.state is ExecutionState.NOT_FOUND or (reply.state is ExecutionState.PENDING and not reply.crew_task_id)


def _open_question(messages: InboxMessages, kickoff_id: str) -> HumanInputRequest | None:
    question = messages.newest
    return question if question and kickoff_id in question.ids else None
