"""The inbox's storage: Airflow Variables, read and written in the API server.

Why Variables? A webhook contains only the id of a registration, and a task, its trigger and its next try must all find
the messages for it. XComs are unsuitable: since Airflow 3.4, an XCom belongs to one try, has no index on `key`, and
cannot be written through `XComModel`. The task state store belongs to one task, and a triggerer cannot read it. A
Variable has a unique, indexed key in every version of Airflow; workers and triggerers access it through the Execution
API, the API server through its model.

* `rows` defines their names. A task records its registration, the latest registered resume, the DAG run that is waiting
  for a Flow, and the Flow questions that were answered; only this module adds messages. If two API servers write the
  same row, one waits for the other.
* Until its credential has been checked, a request costs one SQL statement: a lookup by the unique key, joined with an
  indexed lookup in the XComs that used to hold registrations. Its cost does not depend on the number of Variables and
  XComs.
* Not everyone who is allowed to read Variables may read XComs and forms, so only hashes of credentials are stored, and
  messages, including drafts, are encrypted with Airflow's Fernet key before Airflow stores them.
* Retrying or clearing a task removes nothing. `sweep`, which the API server calls every hour, removes the rows for DAG
  runs that were deleted or ended a day ago.
* Registrations stored as XComs before an upgrade of the provider, or of Airflow to 3.4, are still read from there. The
  first message for such a registration moves it to a Variable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
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
from airflow_crew_provider.compat.encryption import NotDecrypted, seal, unseal
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.inbox.messages import InboxMessages, Registration
from airflow_crew_provider.inbox.rows import (
    TASK_FIELDS,
    FlowRun,
    RegisteredTask,
    answer_key,
    is_over,
    kept_until,
    questions_in,
    questions_key,
    registration_key,
    with_question,
)
from airflow_crew_provider.models import Json

try:
    from airflow.models.xcom import XComModelV1 as EarlierXCom
except ImportError:  # before Airflow 3.4
    from airflow.models.xcom import XComModel as EarlierXCom

OVER = ("success", "failed")
# A review in a failed run may be cleared later; without the callback, its answer could reach another question.
FLOW_OVER = ("success",)
# Final states of a DAG run after which a task's Variables are removed even though the run still exists.
KEPT_BY_TASKS = {
    stored_names.TASK_RECORD: (),
    stored_names.WATCH_STATE: ("success",),
    stored_names.REVIEW_STATE: ("success",),
    stored_names.AGENT_STATE: ("success",),
    # Executions may go on after their run, and a clear must find them.
    stored_names.KICKOFF_STATE: (),
    stored_names.RUN_STATE: (),
    stored_names.RESUME_STATE: (),
}
KEPT_AFTER_RUN = timedelta(hours=20)  # less than a day even with an hour between two sweeps


def mentions(column: Any, text: str) -> Any:
    """Return an SQL condition for a JSON column that may contain a string; callers must check each row found."""
    if not text.isascii():  # databases differ in how they encode it
        return true()
    return cast(column, String).contains(json.dumps(text)[1:-1], autoescape=True)


def connection_of(crew_conn_id: str) -> tuple[Any, Json] | None:
    """Return a connection of type `crew` and its Extra; None if there is none or it cannot be read."""
    try:
        connection = Connection.get_connection_from_secrets(crew_conn_id)
        extra = json.loads(connection.extra) if connection.extra else {}
    except Exception:  # the reason is not disclosed to the sender
        return None
    return (connection, extra) if connection.conn_type == "crew" and isinstance(extra, dict) else None


# --- registrations and messages ---


AT_ONCE = 200  # rows per page of a sweep


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
        stored, value, *names = session.execute(by_id).all()[0]
        if stored is not None:
            return RegisteredTask.of(_read(stored))
        registration = Registration.of(value)
        return RegisteredTask(registration, *names) if registration else None


class InboxStore:
    """Everything stored for one registration, during a transaction that locks it."""

    def __init__(self, session: Any, task: RegisteredTask) -> None:
        self._session = session
        self._row = session.scalars(select(Variable).where(Variable.key == task.messages_key)).one()
        self.messages = InboxMessages.of(json.loads(unseal(self._row.get_val())), task.registration.id)
        self.task = RegisteredTask.of(_value(session, task.key)) or task

    @property
    def over(self) -> bool:
        """Whether the DAG run was deleted; a run that has ended may be cleared as long as its registration is kept."""
        of_run = (DagRun.dag_id == self.task.dag_id, DagRun.run_id == self.task.run_id)
        return self._session.scalar(select(DagRun.id).where(*of_run)) is None

    @property
    def replaced(self) -> bool:
        """Whether a resume of the same execution has since been registered."""
        if self.task.root is None:
            return False
        newest = _value(self._session, self.task.newest_key(self.task.root))
        return newest is not None and newest["at"] > self.task.registration.at

    def store(self, messages: InboxMessages) -> None:
        """Store the messages."""
        self._row.set_val(seal(json.dumps(messages.as_dict())))


@contextmanager
def locked_store(task: RegisteredTask) -> Iterator[InboxStore]:
    """Lock one registration for the duration of a transaction, which is committed at the end."""
    with create_session(scoped=False) as session:
        if not _lock(session, task):
            session.rollback()
            _create(task)
            if not _lock(session, task):
                raise RuntimeError("The registration was removed while a webhook for it was arriving")
        yield InboxStore(session, task)


def _lock(session: Any, task: RegisteredTask) -> bool:
    # Write first: this locks the row on every database, so that later reads are not stale.
    mine = update(Variable).where(Variable.key == task.messages_key).values(description=task.description)
    return bool(session.execute(mine.execution_options(synchronize_session=False)).rowcount)


def _value(session: Any, key: str) -> Any:
    row = session.scalars(select(Variable).where(Variable.key == key)).one_or_none()
    return _read(row) if row else None


def _read(row: Variable) -> Any:
    """Return a row's value; None if Airflow cannot decrypt it, because the Fernet key has changed or is missing."""
    with suppress(ValueError):
        return json.loads(row.get_val() or "null")
    return None


def _create(task: RegisteredTask) -> None:
    """Create the row for messages, with those stored in XComs before an upgrade; a concurrent call may do so first."""
    with suppress(IntegrityError), create_session(scoped=False) as session:
        earlier = _earlier(session, task)
        messages = InboxMessages.of(earlier.get(stored_names.MESSAGES_KEY), task.registration.id)
        if _value(session, task.key) is None:
            posted = earlier.get(stored_names.POSTED_KEY)
            if isinstance(posted, dict) and posted.get("registration") == task.registration.id:
                task = replace(task, kickoff_id=posted["kickoff_id"])
            session.add(_row(task, task.key, task.as_dict()))
        session.add(_row(task, task.messages_key, messages.as_dict(), sealed=True))


def _row(task: RegisteredTask, key: str, value: Json, *, sealed: bool = False) -> Variable:
    text = json.dumps(value)
    return Variable(key=key, val=seal(text) if sealed else text, description=task.description)


def _earlier(session: Any, task: RegisteredTask) -> dict[str, Any]:
    of_task = [getattr(EarlierXCom, name) == getattr(task, name) for name in TASK_FIELDS]
    is_ours = EarlierXCom.key.in_((stored_names.MESSAGES_KEY, stored_names.POSTED_KEY))
    rows = session.execute(select(EarlierXCom.key, EarlierXCom.value).where(*of_task, is_ours))
    return {row.key: row.value for row in rows}


# --- questions from Flows ---


TRIES = 3


def store_question(crew_conn_id: str, question: FlowQuestion, address: AnswerAddress, now: datetime) -> bool:
    """Store a Flow's question and its callback; return False if the question is already known."""
    for _ in range(TRIES):
        # Of two concurrent calls, the second fails, tries again and then finds the first one's rows.
        with suppress(IntegrityError):
            return _store_question(crew_conn_id, question, address, kept_until(now))
    raise RuntimeError("The question could not be stored: too many arrived at once")


def _store_question(crew_conn_id: str, question: FlowQuestion, address: AnswerAddress, description: str) -> bool:
    key = answer_key(crew_conn_id, question.id)
    with create_session(scoped=False) as session:
        if session.scalar(select(Variable.key).where(Variable.key == key)):
            return False
        session.add(Variable(key=key, val=seal(json.dumps(address.as_dict())), description=description))
        session.flush()
        for each in sorted(set(question.ids)):
            name = questions_key(crew_conn_id, each)
            row = session.scalars(select(Variable).where(Variable.key == name).with_for_update()).one_or_none()
            text = seal(json.dumps(with_question(_questions_in(row), question)))
            if row is None:
                session.add(Variable(key=name, val=text, description=description))
            else:
                row.set_val(text)
                row.description = description
            session.flush()
    return True


def _questions_in(row: Variable | None) -> list[FlowQuestion]:
    return questions_in(json.loads(unseal(row.get_val())) if row else None)


# --- removing ---


Run = tuple[str, str]  # DAG id, run id


def sweep(now: datetime) -> int:
    """Remove the rows for DAG runs that were deleted or ended a day ago; return the number of rows removed.

    The records of a failed run's tasks (`task.store`) stay until the run is deleted, because its tasks may be cleared
    later. Those of a kickoff also stay after a successful run, because its execution may go on, those of a resume,
    because a clear must not send the answer again, and those of a run's executions (`compat.execution_record`). A
    Flow's questions are removed with the last successful run that waited for it, or when they expire.
    """
    of_runs = {
        stored_names.INBOX_PREFIX: OVER,
        stored_names.FLOW_RUN_KEY: FLOW_OVER,
        stored_names.EXECUTION_RECORD_KEY: (),
        **{f"{name}__": over for name, over in KEPT_BY_TASKS.items()},
    }
    return sum(_sweep(prefix, now, over) for prefix, over in of_runs.items()) + _sweep_late(now)


def _sweep(prefix: str, now: datetime, over: tuple[str, ...]) -> int:
    removed, after = 0, prefix
    # Messages are removed with their registration.
    mine, arrived = (Variable.key.startswith(each, autoescape=True) for each in (prefix, stored_names.INBOX_BOX_KEY))
    while True:
        # In the order of the unique index.
        page = select(Variable).where(Variable.key > after, mine, ~arrived).order_by(Variable.key).limit(AT_ONCE)
        with create_session(scoped=False) as session:
            rows = session.scalars(page).all()
            removed += _remove(session, _of_ended_runs(session, rows, now, over))
        if len(rows) < AT_ONCE:
            return removed
        after = rows[-1].key


def _sweep_late(now: datetime) -> int:
    """Remove expired Flow questions."""
    with create_session(scoped=False) as session:
        mine = select(Variable.key, Variable.description).where(*_named(stored_names.FLOW_PREFIX))
        late = {row.key for row in session.execute(mine) if is_over(row.key, row.description, now)}
        return _remove(session, late)


def _remove(session: Any, names: set[str]) -> int:
    if not names:
        return 0
    gone = delete(Variable).where(Variable.key.in_(names)).execution_options(synchronize_session=False)
    return int(session.execute(gone).rowcount)


def _named(prefix: str) -> tuple[Any, Any]:
    # The first condition uses the unique index on every database.
    return Variable.key > prefix, Variable.key.startswith(prefix, autoescape=True)


def _of_ended_runs(session: Any, rows: Any, now: datetime, over: tuple[str, ...]) -> set[str]:
    """Return the names of rows whose DAG run is over, and of rows that are removed with them."""
    values = {row.key: _read(row) for row in rows}
    runs = {key: each for key, each in values.items() if isinstance(each, dict) and {"dag_id", "run_id"} <= each.keys()}
    remaining = _kept_runs(session, runs.values(), now, over)
    ended = {key: value for key, value in runs.items() if (value["dag_id"], value["run_id"]) not in remaining}
    tasks = [task for task in map(RegisteredTask.of, ended.values()) if task]
    waits = [run for run in map(FlowRun.of, ended.values()) if run]
    questions = _of_flows(session, waits, now) if waits else set()
    parts = [each[stored_names.PARTS] for each in ended.values() if isinstance(each.get(stored_names.PARTS), dict)]
    sealed = [row for row in (*ended.values(), *chain(*(each.values() for each in parts))) if isinstance(row, dict)]
    keys = {str(row["sealed_with"]) for row in sealed if "sealed_with" in row}
    return {*ended, *(task.messages_key for task in tasks), *questions, *keys}


def _kept_runs(session: Any, named: Iterable[Json], now: datetime, over: tuple[str, ...]) -> set[Run]:
    """Return the DAG runs whose records must be kept: those neither deleted nor ended long ago.

    :param over: the states that count as over
    """
    columns, runs = (DagRun.dag_id, DagRun.run_id), {(each["dag_id"], each["run_id"]) for each in named}
    rows = session.execute(select(*columns, DagRun.state, DagRun.end_date).where(tuple_(*columns).in_(runs)))
    before = now - KEPT_AFTER_RUN
    return {
        (row.dag_id, row.run_id)
        for row in rows
        if row.state not in over or row.end_date is None or row.end_date >= before
    }


def _of_flows(session: Any, ended: list[FlowRun], now: datetime) -> set[str]:
    """Return the names of the rows with these runs' Flow questions, except questions that another run still needs."""
    rows = session.scalars(select(Variable).where(*_named(stored_names.FLOW_RUN_KEY)))
    waits = [run for run in (FlowRun.of(_read(row)) for row in rows) if run]
    remaining = _kept_runs(session, [run.as_dict() for run in waits], now, FLOW_OVER)
    needed = {(run.crew_conn_id, run.execution_id) for run in waits if (run.dag_id, run.run_id) in remaining}
    names: set[str] = set()
    for run in ended:
        key = questions_key(run.crew_conn_id, run.execution_id)
        with suppress(NotDecrypted):  # it expires eventually
            questions = _questions_in(session.scalars(select(Variable).where(Variable.key == key)).one_or_none())
            for question in questions:
                if needed.isdisjoint((run.crew_conn_id, each) for each in question.ids):
                    names.add(answer_key(run.crew_conn_id, question.id))
                    names.update(questions_key(run.crew_conn_id, each) for each in question.ids)
    return names


# --- waking ---


def waiting(task: RegisteredTask, mark: str) -> list[DeferredTask]:
    """List this provider's deferred tasks in the same run whose arguments contain the mark."""
    of_run = (TaskInstance.dag_id == task.dag_id, TaskInstance.run_id == task.run_id)
    return _deferred(*of_run, mentions(TaskInstance.next_kwargs, mark))


def waiting_for(execution_ids: list[str]) -> list[DeferredTask]:
    """List this provider's deferred tasks in all runs whose arguments contain one of the ids."""
    return _deferred(or_(*(mentions(TaskInstance.next_kwargs, each) for each in execution_ids)))


def _deferred(*where: Any) -> list[DeferredTask]:
    # Trigger arguments are encrypted, and decrypting all of them takes a long time: `where` selects only a few.
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
    """Resume a deferred task with an event, as its trigger would; ignore a task that is no longer deferred."""
    with create_session(scoped=False) as session:
        # SQLite reuses the id of a deleted trigger for the next one.
        since = session.scalar(select(Trigger.created_date).where(Trigger.id == waiting.trigger_id))
        if since == waiting.since:
            Trigger.submit_event(waiting.trigger_id, TriggerEvent(event), session=session)
