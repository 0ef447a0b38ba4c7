"""The inbox's side of what is stored: Variables of Airflow, read and written in the API server.

Why Variables. A webhook names nothing but the id of a registration, and a task, its trigger and its next try must find
what arrived. XComs do not serve: since Airflow 3.4 they belong to one attempt, have no index on `key`, and `XComModel`
cannot be written to. The task state store belongs to one task, and a triggerer cannot read it. A Variable has a unique,
indexed key on every version; workers and triggerers reach it by the Execution API, the API server by its model.

* Three names, each ending in a hash: the registration (written by its task alone), what arrived (written here
  alone, once there is a registration), and which resume of an execution registered last (written by the resume). No
  two processes write the same row, except the API servers, which lock it.
* A request costs one statement before its credential is checked: a look-up by the unique key, joined with one by the
  index of the XComs in which registrations stood before. How many Variables and XComs there are does not matter.
* Variables have other readers than XComs and forms: of credentials only hashes are stored, and what arrived, with its
  draft, is encrypted with Airflow's Fernet key before Airflow stores it.
* A retry or a clear takes nothing away. What belongs to a DAG run that is gone, or has been over for a day, is removed
  by `sweep`, which the API server calls every hour.
* What was stored as XComs before an upgrade, of the provider or of Airflow to 3.4, is read where it stands. The first
  message for such a registration moves it here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow.models.connection import Connection
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.models.variable import Variable
from airflow.triggers.base import TriggerEvent
from airflow.utils.session import create_session
from sqlalchemy import String, cast, delete, literal, or_, select, true, tuple_, update
from sqlalchemy.exc import IntegrityError

from airflow_crew_provider import stored_names
from airflow_crew_provider.compat.encryption import seal, unseal
from airflow_crew_provider.inbox.messages import (
    TASK_FIELDS,
    InboxMessages,
    RegisteredTask,
    Registration,
    registration_key,
)
from airflow_crew_provider.models import Json

try:
    from airflow.models.xcom import XComModelV1 as EarlierXCom
except ImportError:  # before Airflow 3.4
    from airflow.models.xcom import XComModel as EarlierXCom

OVER = ("success", "failed")
# The ends of a DAG run after which what a task keeps in a Variable is removed, though the run is still there.
KEPT_BY_TASKS = {
    stored_names.KICKOFF_STATE: ("success",),
    stored_names.WATCH_STATE: ("success",),
    stored_names.REVIEW_STATE: ("success",),
    stored_names.AGENT_STATE: ("success",),
    stored_names.RESUME_STATE: (),
}
KEPT_AFTER_RUN = timedelta(hours=20)  # with an hour between two sweeps, less than a day

Run = tuple[str, str]  # DAG id, run id


def alive(session: Any, runs: Iterable[Run], now: datetime, over: tuple[str, ...] = OVER) -> set[Run]:
    """Return those of some DAG runs for which something is still kept: neither gone nor over for long.

    :param over: the states that count as over
    """
    columns = (DagRun.dag_id, DagRun.run_id)
    found = session.execute(select(*columns, DagRun.state, DagRun.end_date).where(tuple_(*columns).in_(set(runs))))
    return {(row.dag_id, row.run_id) for row in found if not (row.state in over and _has_ended(row, now))}


def _has_ended(run: Any, now: datetime) -> bool:
    return run.end_date is not None and run.end_date < now - KEPT_AFTER_RUN


def mentions(column: Any, text: str) -> Any:
    """Whether a JSON column contains a string; a caller must check each row that matches."""
    if not text.isascii():  # databases differ in how they write it
        return true()
    return cast(column, String).contains(json.dumps(text)[1:-1], autoescape=True)


def connection_of(crew_conn_id: str) -> tuple[Any, Json] | None:
    """Return a connection of type `crew` and its Extra; None without one that can be read."""
    try:
        found = Connection.get_connection_from_secrets(crew_conn_id)
        extra = json.loads(found.extra) if found.extra else {}
    except Exception:  # whatever is wrong with it is not disclosed to the sender
        return None
    return (found, extra) if found.conn_type == "crew" and isinstance(extra, dict) else None


# --- registrations, and what arrived ---


AT_ONCE = 200  # rows of a sweep


@dataclass(frozen=True)
class DeferredTask:
    """A deferred task of this provider, and the arguments of its trigger."""

    trigger_id: int
    run_id: str
    task_id: str
    kwargs: Json
    since: datetime


def find(registration_id: str) -> RegisteredTask | None:
    """Look up a registration by its id, in one statement."""
    earlier = [getattr(EarlierXCom, name) for name in ("value", *TASK_FIELDS)]
    one = select(literal(1).label("one")).subquery()
    by_id = (
        select(Variable, *earlier)
        .select_from(one)
        .outerjoin(Variable, Variable.key == registration_key(registration_id))
        .outerjoin(EarlierXCom, EarlierXCom.key == stored_names.REGISTRATION_KEY + registration_id)
    )
    with create_session(scoped=False) as session:
        kept, value, *names = session.execute(by_id).all()[0]
        if kept is not None:
            return RegisteredTask.of(_read(kept))
        registration = Registration.of(value)
        return RegisteredTask(registration, *names) if registration else None


class InboxStore:
    """All that is stored under one registration, during a transaction that locks it."""

    def __init__(self, session: Any, task: RegisteredTask) -> None:
        self._session = session
        self._row = session.scalars(select(Variable).where(Variable.key == task.messages_key)).one()
        self.messages = InboxMessages.of(json.loads(unseal(self._row.get_val())), task.registration.id)
        self.task = RegisteredTask.of(_value(session, task.key)) or task

    @property
    def over(self) -> bool:
        """Whether the DAG run is over, or gone."""
        of_run = (DagRun.dag_id == self.task.dag_id, DagRun.run_id == self.task.run_id)
        state = self._session.scalar(select(DagRun.state).where(*of_run))
        return state is None or state in OVER

    @property
    def replaced(self) -> bool:
        """Whether a resume of the same execution has registered since."""
        if self.task.root is None:
            return False
        newest = _value(self._session, self.task.newest_key(self.task.root))
        return newest is not None and newest["at"] > self.task.registration.at

    def store(self, messages: InboxMessages) -> None:
        """Write what arrived."""
        self._row.set_val(seal(json.dumps(messages.as_dict())))


@contextmanager
def locked_store(task: RegisteredTask) -> Iterator[InboxStore]:
    """Lock one registration for this transaction; what is stored is committed at its end."""
    with create_session(scoped=False) as session:
        if not _lock(session, task):
            session.rollback()
            _create(task)
            if not _lock(session, task):
                raise RuntimeError("The registration was removed while a webhook for it arrived")
        yield InboxStore(session, task)


def _lock(session: Any, task: RegisteredTask) -> bool:
    # A write comes first: it locks on every database, and nothing that is read after it is stale.
    mine = update(Variable).where(Variable.key == task.messages_key).values(description=task.description)
    return bool(session.execute(mine.execution_options(synchronize_session=False)).rowcount)


def _value(session: Any, key: str) -> Any:
    found = session.scalars(select(Variable).where(Variable.key == key)).one_or_none()
    return _read(found) if found else None


def _read(row: Variable) -> Any:
    """Return what a row holds; None where Airflow cannot decrypt it any more, with another key or with none."""
    with suppress(ValueError):
        return json.loads(row.get_val() or "null")
    return None


def _create(task: RegisteredTask) -> None:
    """Make the row for what arrives, from the XComs of before an upgrade; two at once make it once."""
    with suppress(IntegrityError), create_session(scoped=False) as session:
        earlier = _earlier(session, task)
        messages = InboxMessages.of(earlier.get(stored_names.MESSAGES_KEY), task.registration.id)
        if _value(session, task.key) is None:
            session.add(_row(task, task.key, _with_kickoff_id(task, earlier.get(stored_names.POSTED_KEY)).as_dict()))
        session.add(_row(task, task.messages_key, messages.as_dict(), sealed=True))


def _row(task: RegisteredTask, key: str, value: Json, *, sealed: bool = False) -> Variable:
    text = json.dumps(value)
    return Variable(key=key, val=seal(text) if sealed else text, description=task.description)


def _earlier(session: Any, task: RegisteredTask) -> dict[str, Any]:
    of_task = [getattr(EarlierXCom, name) == getattr(task, name) for name in TASK_FIELDS]
    kept = EarlierXCom.key.in_((stored_names.MESSAGES_KEY, stored_names.POSTED_KEY))
    rows = session.execute(select(EarlierXCom.key, EarlierXCom.value).where(*of_task, kept))
    return {row.key: row.value for row in rows}


def _with_kickoff_id(task: RegisteredTask, posted: Any) -> RegisteredTask:
    mine = isinstance(posted, dict) and posted.get("registration") == task.registration.id
    return task.posted(posted["kickoff_id"]) if mine else task


# --- removing ---


def sweep(now: datetime) -> int:
    """Remove what belongs to DAG runs that are gone or have been over for a day; return how many rows.

    What tasks keep (`compat.task_state`) stays as long as a DAG run that failed, since its tasks may be cleared later;
    and that of a resume as long as any run, since a clear must not send its answer again. So does what confirms which
    executions a run is about (`compat.execution_record`).
    """
    states = (_sweep(f"{name}__", now, over) for name, over in KEPT_BY_TASKS.items())
    of_tab = _sweep(stored_names.EXECUTION_RECORD_KEY, now, ())
    return _sweep(stored_names.INBOX_PREFIX, now, OVER) + of_tab + sum(states)


def _sweep(prefix: str, now: datetime, over: tuple[str, ...]) -> int:
    removed, after = 0, prefix
    while True:
        with create_session(scoped=False) as session:
            rows = session.scalars(_next(prefix, after)).all()
            names = _of_ended_runs(session, rows, now, over)
            if names:
                gone = delete(Variable).where(Variable.key.in_(names))
                session.execute(gone.execution_options(synchronize_session=False))
        removed += len(names)
        if len(rows) < AT_ONCE:
            return removed
        after = rows[-1].key


def _next(prefix: str, after: str) -> Any:
    """Return the query for rows by their order, which the unique index has; what arrived goes with its registration."""
    mine, arrived = (Variable.key.startswith(each, autoescape=True) for each in (prefix, stored_names.INBOX_BOX_KEY))
    return select(Variable).where(Variable.key > after, mine, ~arrived).order_by(Variable.key).limit(AT_ONCE)


def _of_ended_runs(session: Any, rows: Any, now: datetime, over: tuple[str, ...]) -> list[str]:
    """Return the names of those rows whose DAG run is over, and of what arrived for them."""
    found = {row.key: value for row in rows if _names_a_run(value := _read(row))}
    runs = {(value["dag_id"], value["run_id"]) for value in found.values()}
    kept = alive(session, runs, now, over)
    ended = [key for key, value in found.items() if (value["dag_id"], value["run_id"]) not in kept]
    tasks = [task for task in (RegisteredTask.of(found[key]) for key in ended) if task]
    return [*ended, *(task.messages_key for task in tasks)]


def _names_a_run(value: Any) -> bool:
    return isinstance(value, dict) and {"dag_id", "run_id"} <= value.keys()


# --- waking ---


def waiting(task: RegisteredTask, mark: str) -> list[DeferredTask]:
    """List this provider's deferred tasks of the same run whose arguments hold a mark."""
    of_run = (TaskInstance.dag_id == task.dag_id, TaskInstance.run_id == task.run_id)
    return _deferred(*of_run, mentions(TaskInstance.next_kwargs, mark))


def waiting_for(execution_ids: list[str]) -> list[DeferredTask]:
    """List this provider's deferred tasks of all runs whose arguments hold one of the ids."""
    return _deferred(or_(*(mentions(TaskInstance.next_kwargs, each) for each in execution_ids)))


def _deferred(*where: Any) -> list[DeferredTask]:
    # The arguments of triggers are encrypted, and decrypting all of them takes long: `where` names the few.
    mine = (TaskInstance.state == "deferred", Trigger.classpath == stored_names.TRIGGER_CLASS_PATH)
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


def wake(waiting: DeferredTask, event: Json) -> None:
    """Resume a deferred task with an event, as its trigger would; a task that is not deferred is left alone."""
    with create_session(scoped=False) as session:
        Trigger.submit_event(waiting.trigger_id, TriggerEvent(event), session=session)
