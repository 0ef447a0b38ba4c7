"""The inbox seen from a task: registering with it, and looks that know what webhooks have told.

The inbox itself runs in the API server; the two meet in the XComs of the task that registered.
"""

from __future__ import annotations

from typing import Any

import airflow
from airflow.providers.common.compat.sdk import XCom, mask_secret
from asgiref.sync import sync_to_async

from airflow_crew_provider.boxes import Box, Question
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewInvalidInput, CrewNotFound
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.hooks.memory import memory_of, task_identity
from airflow_crew_provider.models import Execution, ExecutionState, Json, Webhooks
from airflow_crew_provider.registrations import (
    BOX_KEY,
    POSTED_KEY,
    WORD,
    Registration,
    fresh,
    registered,
    repeatable,
    secrets_of,
)


def register(
    context: Any, hook: CrewHook, idempotency_key: str, execution_id: str | None = None
) -> tuple[Registration, Webhooks]:
    """Register the next POST of this task with the inbox, durably; return what to remember and what to send."""
    if airflow.__version__.startswith("2."):
        raise CrewInvalidInput(
            "webhooks='inbox' needs Airflow 3: older ones have no place for the inbox. Nothing was sent; leave "
            "webhooks out and the wait goes by polling"
        )
    connection = hook.connection
    if not (connection.inbox_url or "").startswith(("https://", "http://")):
        raise CrewInvalidInput(
            f"Connection {hook.crew_conn_id!r} has no inbox_url in its Extra, or one that is no http or https address; "
            "webhooks='inbox' needs the inbox of this Airflow as the service sees it, e.g. "
            "https://airflow.example.com/crew-inbox. Nothing was sent"
        )
    assert connection.inbox_url
    again = connection.idempotency_keys
    secret = repeatable(connection.deployment.token, idempotency_key) if again else fresh
    registration, webhooks = registered(connection.inbox_url, execution_id, secret)
    for hidden in secrets_of(webhooks):
        mask_secret(hidden)
    put_up(context, registration, Box(registration.id))
    return registration, webhooks


def put_up(context: Any, registration: Registration, box: Box) -> None:
    """Store a registration where the inbox finds it; a try of a task begins without those of earlier tries."""
    try:
        context["ti"].xcom_push(key=BOX_KEY, value=box.as_dict())
        context["ti"].xcom_push(key=registration.key, value=registration.as_dict())
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    else:
        return
    raise CrewConnectionError(f"The registration with the inbox could not be stored ({problem}); nothing was sent")


def posted(context: Any, registration: Json, kickoff_id: str, *, again: bool = False) -> None:
    """Record which kickoff id the service gave for a registration; ``again`` in a further try of the task."""
    kept = Registration.of(registration)
    if kept is None:
        return
    if again:
        # Airflow 3.3 keeps what arrived before this try; older ones have lost it with the XComs.
        put_up(context, kept, Box.of(memory_of(context, BOX_KEY).recall(), kept.id))
    value = {"registration": kept.id, "kickoff_id": kickoff_id, "at": kept.at, **task_identity(context)}
    context["ti"].xcom_push(key=POSTED_KEY, value=value)


def address_of(context: Any, task: Any, kickoff_id: str) -> Json | None:
    """Find the task upstream that registered the execution with this id: where to look for what arrived."""
    upstream = task.get_flat_relatives(upstream=True) if task.has_dag() else ()
    tasks = sorted(each.task_id for each in upstream if _may_have_registered(each))
    if not tasks:
        return None
    values = context["ti"].xcom_pull(task_ids=tasks, key=POSTED_KEY) or []
    found = [each for each in values if isinstance(each, dict) and each.get("kickoff_id") == kickoff_id]
    return max(found, key=lambda each: each["at"], default=None)


def _may_have_registered(task: Any) -> bool:
    """Whether a task was told so, by the word itself or by a template."""
    webhooks = getattr(task, "webhooks", None) or (getattr(task, "partial_kwargs", None) or {}).get("webhooks")
    return isinstance(webhooks, str) and (webhooks == WORD or "{{" in webhooks)


class InboxHook(CrewHook):
    """A hook whose looks know what the inbox was told: a live deployment does not say that it waits for a person.

    :param address: the XCom address of the task that registered
    """

    def __init__(self, crew_conn_id: str, address: Json) -> None:
        super().__init__(crew_conn_id)
        self.address = address
        self._told = ""

    def look(self, kickoff_id: str, timeout: float | None = None) -> Execution | CrewError:
        """Look at the status, and where it does not tell, into the inbox."""
        reply = super().look(kickoff_id, timeout)
        return self._either(reply, self._box(), kickoff_id) if _does_not_tell(reply) else reply

    async def _alook(self, kickoff_id: str, timeout: float | None) -> Execution | CrewError:  # noqa: ASYNC109 - passed on
        reply = await super()._alook(kickoff_id, timeout)
        return self._either(reply, await self._abox(), kickoff_id) if _does_not_tell(reply) else reply

    async def was_asked(self, kickoff_id: str) -> bool:
        """Whether a question to a person has arrived."""
        return _open_question(await self._abox(), kickoff_id) is not None

    def _either(self, reply: Execution | CrewError, box: Box, kickoff_id: str) -> Execution | CrewError:
        if box.progress != self._told:
            self._told = box.progress
            self.log.info("By webhook of execution %s: %s", kickoff_id, box.progress)
        question = _open_question(box, kickoff_id)
        return reply if question is None else question.as_execution(kickoff_id)

    @property
    def _where(self) -> Json:
        return {"key": BOX_KEY, **{name: self.address[name] for name in ("dag_id", "run_id", "task_id", "map_index")}}

    def _box(self) -> Box:
        try:
            return self._read(XCom.get_one(**self._where))
        except Exception:
            return self._unreadable()

    async def _abox(self) -> Box:
        # Airflow 3.3 reads without a thread, of which a triggerer has few.
        get_one = getattr(XCom, "aget_one", None) or sync_to_async(XCom.get_one)
        try:
            return self._read(await get_one(**self._where))
        except Exception:
            return self._unreadable()

    def _read(self, value: Any) -> Box:
        return Box.of(value, self.address["registration"])

    def _unreadable(self) -> Box:
        self.log.warning("The inbox could not be read; polling goes on", exc_info=True)
        return Box(self.address["registration"])


def hook_with(crew_conn_id: str, address: Json | None) -> CrewHook:
    """Return a hook that knows the inbox, if there is one."""
    return InboxHook(crew_conn_id, address) if address else CrewHook(crew_conn_id)


def _does_not_tell(reply: Execution | CrewError) -> bool:
    """Whether a person may be waited for without the status saying so."""
    if isinstance(reply, CrewError):
        return isinstance(reply, CrewNotFound)
    if reply.state is ExecutionState.RUNNING:
        return isinstance(reply.raw.get("state"), str)  # a live deployment, whose status may lag behind
    return reply.state is ExecutionState.NOT_FOUND or (reply.state is ExecutionState.PENDING and not reply.crew_task_id)


def _open_question(box: Box, kickoff_id: str) -> Question | None:
    question = box.newest
    return question if question and kickoff_id in question.ids else None
