"""The inbox seen from a task: registration, and polls that also read what webhooks have reported.

The inbox itself runs in the API server; the two meet in Variables, for which see `inbox.store`.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import mask_secret

from airflow_crew_provider.compat.task_state import task_identity, task_state_of
from airflow_crew_provider.compat.version import has_inbox
from airflow_crew_provider.compat.xcoms import aget_shared, get_shared, pull_shared, push_shared
from airflow_crew_provider.core.inbox_addresses import (
    WORD,
    Registration,
    fresh,
    registered,
    repeatable,
    secrets_of,
)
from airflow_crew_provider.core.inbox_messages import HumanInputRequest, InboxMessages
from airflow_crew_provider.core.stored_names import MESSAGES_KEY, POSTED_KEY
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewInvalidInput, CrewNotFound
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.hooks.flow_inbox import FlowHook
from airflow_crew_provider.inbox import variables
from airflow_crew_provider.inbox.records import RegisteredTask
from airflow_crew_provider.models import Execution, ExecutionState, Json, Webhooks


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
        variables.register(RegisteredTask(registration, **task_identity(context)), InboxMessages(registration.id))
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
            f"Connection {hook.crew_conn_id!r} has no inbox_url in its Extra, or one that is no http or https address; "
            "webhooks='inbox' needs the inbox of this Airflow as the service sees it, e.g. "
            "https://airflow.example.com/crew-inbox. Nothing was sent"
        )


def posted(context: Any, registration: Json, kickoff_id: str, *, again: bool = False) -> None:
    """Record which kickoff id the service gave for a registration; ``again`` in a further try of the task."""
    kept = Registration.of(registration)
    if kept is None:
        return
    task = RegisteredTask(kept, **task_identity(context), kickoff_id=kickoff_id)
    variables.register(task, _stored_before_an_upgrade(context, kept) if again else InboxMessages(kept.id))
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


class InboxHook(FlowHook):
    """A hook that polls the inbox too: the status of a live deployment does not show that it waits for a person.

    :param address: the XCom address of the task that registered
    """

    def __init__(self, crew_conn_id: str, address: Json) -> None:
        super().__init__(crew_conn_id)
        self.address = address
        self._reported_progress = ""

    def poll(self, kickoff_id: str, timeout: float | None = None) -> Execution | CrewError:
        """Poll the status and, where it does not show a pending question, the inbox."""
        reply = super().poll(kickoff_id, timeout)
        return self._either(reply, self._box(), kickoff_id) if _may_hide_a_question(reply) else reply

    async def _apoll(self, kickoff_id: str, timeout: float | None) -> Execution | CrewError:  # noqa: ASYNC109 - passed on
        reply = await super()._apoll(kickoff_id, timeout)
        return self._either(reply, await self._abox(), kickoff_id) if _may_hide_a_question(reply) else reply

    async def was_asked(self, kickoff_id: str) -> bool:
        """Whether a question to a person has arrived."""
        return _open_question(await self._abox(), kickoff_id) is not None

    def _either(self, reply: Execution | CrewError, messages: InboxMessages, kickoff_id: str) -> Execution | CrewError:
        if messages.progress != self._reported_progress:
            self._reported_progress = messages.progress
            self.log.info("By webhook of execution %s: %s", kickoff_id, messages.progress)
        question = _open_question(messages, kickoff_id)
        return reply if question is None else question.as_execution(kickoff_id)

    @property
    def _where(self) -> Json:
        """Where a message of before an upgrade stands."""
        return {
            "key": MESSAGES_KEY,
            **{name: self.address[name] for name in ("dag_id", "run_id", "task_id", "map_index")},
        }

    def _box(self) -> InboxMessages:
        try:
            return self._read(variables.box(self.address["registration"]) or get_shared(**self._where))
        except Exception:
            return self._unreadable()

    async def _abox(self) -> InboxMessages:
        try:
            return self._read(await variables.abox(self.address["registration"]) or await aget_shared(**self._where))
        except Exception:
            return self._unreadable()

    def _read(self, value: Any) -> InboxMessages:
        return InboxMessages.of(value, self.address["registration"])

    def _unreadable(self) -> InboxMessages:
        self.log.warning("The inbox could not be read; polling continues", exc_info=True)
        return InboxMessages(self.address["registration"])


def hook_with(crew_conn_id: str, address: Json | None) -> CrewHook:
    """Return a hook that knows the inbox, if there is one."""
    return InboxHook(crew_conn_id, address) if address else FlowHook(crew_conn_id)


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
