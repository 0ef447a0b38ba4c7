"""Access to Airflow's database: XComs as storage, triggers to fire. All of it is internal to Airflow.

Tried on 3.0.6, 3.1.8, 3.2.2 and 3.3.2, with whole processes on 3.3.2 only. Airflow 2.11 has no inbox.

A registration is the XCom of the task that made it; Airflow removes it, and what arrived, with the task instance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.models.xcom import XComModel
from airflow.triggers.base import TriggerEvent
from airflow.utils.session import create_session
from sqlalchemy import String, cast, or_, select, true, update

from airflow_crew_provider.core.inbox_addresses import Registration
from airflow_crew_provider.core.inbox_messages import InboxMessages
from airflow_crew_provider.core.stored_names import MESSAGES_KEY, POSTED_KEY, REGISTRATION_KEY, TRIGGER_CLASS_PATH
from airflow_crew_provider.models import Json

try:
    from airflow.state import TaskScope, get_state_backend
except ImportError:  # before Airflow 3.3
    get_state_backend = None  # type: ignore[assignment]

OVER = ("success", "failed")


@dataclass(frozen=True)
class RegisteredTask:
    """The task instance that made a registration."""

    registration: Registration
    dag_run_id: int
    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @property
    def names(self) -> Json:
        """The columns that name the task instance in XComs."""
        names = ("dag_run_id", "dag_id", "run_id", "task_id", "map_index")
        return {name: getattr(self, name) for name in names}

    def rows(self, *keys: str) -> tuple[Any, ...]:
        """Return the conditions that name some of its XComs."""
        unique = ("dag_run_id", "task_id", "map_index")
        return (*(getattr(XComModel, name) == getattr(self, name) for name in unique), XComModel.key.in_(keys))


@dataclass(frozen=True)
class DeferredTask:
    """A deferred task of this provider, and the arguments of its trigger."""

    trigger_id: int
    run_id: str
    task_id: str
    kwargs: Json
    since: datetime


def find(registration_id: str) -> RegisteredTask | None:
    """Look up a registration by its id."""
    with create_session(scoped=False) as session:
        found = session.scalars(
            select(XComModel).where(XComModel.key == REGISTRATION_KEY + registration_id)
        ).one_or_none()
        registration = Registration.of(found.value) if found else None
        if found is None or registration is None:
            return None
        return RegisteredTask(
            registration, found.dag_run_id, found.dag_id, found.run_id, found.task_id, found.map_index
        )


class InboxStore:
    """All that is stored under one registration, during a transaction that locks it."""

    def __init__(self, session: Any, address: RegisteredTask) -> None:
        self._session, self._address = session, address
        rows = session.execute(select(XComModel.key, XComModel.value).where(*address.rows(MESSAGES_KEY, POSTED_KEY)))
        self._found = {row.key: row.value for row in rows}
        self.messages = InboxMessages.of(self._found.get(MESSAGES_KEY), address.registration.id)

    @property
    def posted(self) -> str | None:
        """The id that the service returned for this registration; None until its answer has arrived."""
        posted = self._found.get(POSTED_KEY) or {}
        return posted["kickoff_id"] if posted.get("registration") == self._address.registration.id else None

    @property
    def root(self) -> str | None:
        """The id of the first kickoff, if it is known yet."""
        return self._address.registration.execution_id or self.posted

    @property
    def over(self) -> bool:
        """Whether the DAG run is over."""
        return self._session.scalar(select(DagRun.state).where(DagRun.id == self._address.dag_run_id)) in OVER

    def replaced(self, root: str | None) -> bool:
        """Whether a resume of the same execution has registered since."""
        if root is None:
            return False
        of_run = (XComModel.dag_id == self._address.dag_id, XComModel.run_id == self._address.run_id)
        registrations = XComModel.key.startswith(REGISTRATION_KEY, autoescape=True)
        about = mentions(XComModel.value, root)
        values = self._session.scalars(select(XComModel.value).where(*of_run, registrations, about))
        read = [each for each in map(Registration.of, values) if each]
        mine = self._address.registration
        return any(each.execution_id == root and each.at > mine.at for each in read)

    def store(self, messages: InboxMessages) -> None:
        """Write what arrived; a question also where it outlives the XComs of this try."""
        address = self._address
        if get_state_backend is not None and messages.question != self.messages.question:
            scope = TaskScope(address.dag_id, address.run_id, address.task_id, address.map_index)
            get_state_backend().set(scope, MESSAGES_KEY, json.dumps(messages.as_dict()), session=self._session)
        if MESSAGES_KEY in self._found:
            write = update(XComModel).where(*address.rows(MESSAGES_KEY)).values(value=messages.as_dict())
            self._session.execute(write.execution_options(synchronize_session=False))
        else:
            self._session.add(XComModel(**address.names, key=MESSAGES_KEY, value=messages.as_dict()))


@contextmanager
def locked_store(address: RegisteredTask) -> Iterator[InboxStore]:
    """Lock one registration for this transaction; what is stored is committed at its end."""
    with create_session(scoped=False) as session:
        # A write comes first: it locks on every database, and nothing that is read after it is stale.
        mine = update(XComModel).where(*address.rows(address.registration.key)).values(timestamp=datetime.now(UTC))
        session.execute(mine.execution_options(synchronize_session=False))
        yield InboxStore(session, address)


def waiting(address: RegisteredTask, mark: str) -> list[DeferredTask]:
    """List this provider's deferred tasks of the same run whose arguments hold a mark."""
    of_run = (TaskInstance.dag_id == address.dag_id, TaskInstance.run_id == address.run_id)
    return _deferred(*of_run, mentions(TaskInstance.next_kwargs, mark))


def waiting_for(execution_ids: list[str]) -> list[DeferredTask]:
    """List this provider's deferred tasks of all runs whose arguments hold one of the ids."""
    return _deferred(or_(*(mentions(TaskInstance.next_kwargs, each) for each in execution_ids)))


def _deferred(*where: Any) -> list[DeferredTask]:
    # The arguments of triggers are encrypted, and decrypting all of them takes long: `where` names the few.
    mine = (TaskInstance.state == "deferred", Trigger.classpath == TRIGGER_CLASS_PATH)
    with create_session(scoped=False) as session:
        rows = session.execute(
            select(Trigger, TaskInstance.run_id, TaskInstance.task_id)
            .join(TaskInstance, TaskInstance.trigger_id == Trigger.id)
            .where(*mine, *where)
        )
        return [
            DeferredTask(trigger.id, run_id, task_id, dict(trigger.kwargs), trigger.created_date)
            for trigger, run_id, task_id in rows
        ]


def mentions(column: Any, text: str) -> Any:
    """Whether a JSON column contains a text; a caller must check each row that matches."""
    if not text.isascii():  # databases differ in how they write it
        return true()
    return cast(column, String).contains(json.dumps(text)[1:-1], autoescape=True)


def wake(waiting: DeferredTask, event: Json) -> None:
    """Resume a deferred task with an event, as its trigger would; a task that is not deferred is left alone."""
    with create_session(scoped=False) as session:
        Trigger.submit_event(waiting.trigger_id, TriggerEvent(event), session=session)
