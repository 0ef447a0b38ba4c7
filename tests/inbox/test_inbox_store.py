"""Where the inbox keeps what arrives: its cost, its end, and what stood elsewhere before an upgrade."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow import settings
from airflow.models import xcom
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.models.variable import Variable
from airflow.utils.session import create_session
from registered_run import Given, RegisteredRun, store_variables
from sqlalchemy import delete, event, func, insert, select, update

from airflow_crew_provider.compat.execution_record import ExecutionRecord, record_execution
from airflow_crew_provider.inbox import store
from airflow_crew_provider.inbox.messages import HumanInputRequest, InboxMessages, registered
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import (
    INBOX_PREFIX,
    KICKOFF_STATE,
    MESSAGES_KEY,
    POSTED_KEY,
    REGISTRATION_KEY,
    RESUME_STATE,
    RUN_STATE,
    TASK_RECORD,
)
from airflow_crew_provider.task.store import TaskRecord
from scripts.stack import wait_until
from scripts.stack.waiting import PATIENCE

DAY = timedelta(days=1)
EARLIER = store.EarlierXCom


def names(given: Given) -> set[str]:
    """Return the Variables of a registration."""
    task = store.find(given.registration.id)
    return {task.key, task.messages_key, *(task.newest or ())[:1]} if task else set()


def stored(names: set[str]) -> set[str]:
    with create_session(scoped=False) as session:
        return set(session.scalars(select(Variable.key).where(Variable.key.in_(names))))


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect what is sent to the database."""
    sent: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        sent.append(statement)

    event.listen(settings.engine, "before_cursor_execute", note)
    yield sent
    event.remove(settings.engine, "before_cursor_execute", note)


def scans(statement: str) -> list[str]:
    """Return the tables that SQLite reads from end to end for a statement."""
    with settings.engine.connect() as connection:
        plan = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement.replace("?", "'a'")).fetchall()
    assert plan
    return [step[-1] for step in plan if step[-1].startswith(("SCAN variable", "SCAN xcom"))]


def test_a_scan_would_be_noticed(dag_run: RegisteredRun) -> None:
    assert scans("SELECT id FROM variable WHERE val = ?") == ["SCAN variable"]


@pytest.mark.row("A24")
def test_a_request_without_valid_credentials_costs_one_indexed_statement(dag_run: RegisteredRun) -> None:
    unknown = dag_run.kickoff.url[:-10] + "a" * 10
    for send in (
        lambda: dag_run.send_question(token="wrong"),
        lambda: dag_run.http.post(unknown, json=dag_run.question(), timeout=PATIENCE),
        lambda: dag_run.send_webhook("/".join([*str(dag_run.kickoff.webhooks.task).split("/")[:-2], "x" * 43, "task"])),
    ):
        with statements() as sent:
            assert send().status_code == 401
        assert len(sent) == 1, sent
        assert scans(sent[0]) == []


@pytest.mark.row("A24")
def test_what_is_stored_goes_within_a_day_of_its_run(dag_run: RegisteredRun) -> None:
    resume = dag_run.register("resume", execution_id=dag_run.execution_id)
    assert dag_run.send_question(resume).status_code == 200
    kept = names(dag_run.kickoff) | names(resume)
    assert stored(kept) == kept
    assert len(kept) == 5
    now = datetime.now(UTC)

    store.sweep(now + 30 * DAY)
    assert stored(kept) == kept, "the run goes on"
    with create_session(scoped=False) as session:
        session.execute(update(DagRun).where(DagRun.dag_id == dag_run.dag_id).values(state="success", end_date=now))
    store.sweep(now + timedelta(hours=1))
    assert stored(kept) == kept, "late messages are still acknowledged"
    store.sweep(now + DAY - timedelta(hours=1))
    assert stored(kept) == set()


@pytest.mark.row("A24")
def test_stored_rows_go_with_their_run_and_nothing_else_does(dag_run: RegisteredRun) -> None:
    kept, mine = names(dag_run.kickoff), f"{INBOX_PREFIX[:-1]}s_of_a_user_{uuid4().hex[:8]}"
    Variable.set(mine, "a Variable of a user")
    with create_session(scoped=False) as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == dag_run.dag_id))
    assert dag_run.send_question().json() == {"status": "too late; nothing changed"}
    store.sweep(datetime.now(UTC))
    assert stored({*kept, mine}) == {mine}
    assert dag_run.send_question().status_code == 401


def kept_by_a_task(dag_run: RegisteredRun, name: str) -> set[str]:
    """Return the Variable of a task that has kept something."""
    identity = {"dag_id": dag_run.dag_id, "run_id": dag_run.run_id, "task_id": "zzzz_é", "map_index": -1}
    record = TaskRecord(identity)
    state = record.part(KICKOFF_STATE if name == TASK_RECORD else name, None)
    state.keep({"kickoff_id": "k-1"})
    assert state.recall() == {"kickoff_id": "k-1"}
    return {record.key if name == TASK_RECORD else state.earlier_key}


@pytest.mark.row("A24")
@pytest.mark.parametrize("name", store.KEPT_BY_TASKS)
@pytest.mark.parametrize("ended", ["success", "failed"])
def test_task_rows_go_within_a_day_of_a_successful_run(
    dag_run: RegisteredRun, name: str, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_variables(monkeypatch)
    kept, now = kept_by_a_task(dag_run, name), datetime.now(UTC)
    store.sweep(now + 30 * DAY)
    assert stored(kept) == kept, "the run goes on"
    with create_session(scoped=False) as session:
        session.execute(update(DagRun).where(DagRun.dag_id == dag_run.dag_id).values(state=ended, end_date=now))
    store.sweep(now + timedelta(hours=1))
    assert stored(kept) == kept
    store.sweep(now + DAY - timedelta(hours=1))
    goes = ended == "success" and name not in (TASK_RECORD, KICKOFF_STATE, RUN_STATE, RESUME_STATE)
    assert stored(kept) == (set() if goes else kept), "a task that is cleared later needs it"
    with create_session(scoped=False) as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == dag_run.dag_id))
    store.sweep(now)
    assert stored(kept) == set()


@pytest.mark.row("A33")
@pytest.mark.since_airflow("3.1")
def test_an_executions_confirmation_stays_after_success_until_its_run_goes(
    dag_run: RegisteredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_variables(monkeypatch)
    about = {"crew_conn_id": "crew_default", "execution_id": "k-1", "kickoff_id": "k-1"}
    record, now = ExecutionRecord.of(dag_run.dag_id, dag_run.run_id, about), datetime.now(UTC)
    ti = SimpleNamespace(dag_id=dag_run.dag_id, run_id=dag_run.run_id, task_id="kickoff", map_index=-1)
    for _ in range(2):  # a retry records the same
        record_execution({"ti": ti}, about)
    with create_session(scoped=False) as session:
        session.execute(update(DagRun).where(DagRun.dag_id == dag_run.dag_id).values(state="success", end_date=now))
    store.sweep(now + 30 * DAY)
    assert stored({record.key}) == {record.key}
    with create_session(scoped=False) as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == dag_run.dag_id))
    store.sweep(now)
    assert stored({record.key}) == set()


def test_more_rows_than_one_page_of_a_sweep_go(dag_run: RegisteredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "AT_ONCE", 2)
    others = [dag_run.register(f"kickoff-{number}") for number in range(5)]
    kept = set().union(*(names(given) for given in others))
    with create_session(scoped=False) as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == dag_run.dag_id))
    store.sweep(datetime.now(UTC))
    assert stored(kept) == set()


@pytest.mark.parametrize("value", ["gAAAA, which cannot be decrypted any more", "5", "{}"])
def test_an_unreadable_value_keeps_nothing_else_from_being_removed(dag_run: RegisteredRun, value: str) -> None:
    kept, other = names(dag_run.kickoff), INBOX_PREFIX + uuid4().hex
    Variable.set(other, value)
    with create_session(scoped=False) as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == dag_run.dag_id))
    store.sweep(datetime.now(UTC))
    assert stored({*kept, other}) == {other}
    Variable.delete(other)


def put_earlier(dag_run: RegisteredRun, task_id: str, key: str, value: Json) -> None:
    """Store an XCom as it stood before an upgrade to this release, and since 3.4 of Airflow."""
    where: Json = {"dag_id": dag_run.dag_id, "run_id": dag_run.run_id, "task_id": task_id, "map_index": -1}
    with create_session(scoped=False) as session:
        if hasattr(xcom, "XComModelV1"):
            from airflow.models.taskinstance import LegacyTaskDataOwner, TaskInstance

            mine = [getattr(LegacyTaskDataOwner, name) == value for name, value in where.items()]
            if not session.scalar(select(func.count()).select_from(LegacyTaskDataOwner).where(*mine)):
                of_run = (TaskInstance.dag_id == dag_run.dag_id, TaskInstance.task_id == task_id)
                owner = session.scalar(select(TaskInstance.id).where(*of_run))
                session.execute(insert(LegacyTaskDataOwner).values(**where, task_instance_id=owner))
        run_id = session.scalar(select(DagRun.id).where(DagRun.dag_id == dag_run.dag_id))
        row = {**where, "dag_run_id": run_id, "key": key, "value": value, "timestamp": datetime.now(UTC)}
        session.execute(insert(EARLIER).values(**row))


@pytest.fixture
def earlier(dag_run: RegisteredRun) -> Given:
    """A registration with one question, as the release before stored them."""
    dag_run.add_task("before", state="running")
    registration, webhooks = registered(dag_run.inbox_url, None)
    question = HumanInputRequest.read(dag_run.question(task_id="first"))
    messages = InboxMessages(registration.id).asking(question).as_dict()
    put_earlier(dag_run, "before", REGISTRATION_KEY + registration.id, asdict(registration))
    put_earlier(dag_run, "before", MESSAGES_KEY, messages)
    answer = {"registration": registration.id, "kickoff_id": dag_run.execution_id}
    put_earlier(dag_run, "before", POSTED_KEY, answer)
    return Given("before", registration, webhooks)


@pytest.mark.row("A24")
def test_a_webhook_for_a_pre_upgrade_registration_still_arrives(dag_run: RegisteredRun, earlier: Given) -> None:
    trigger = dag_run.wait(earlier, dag_run.execution_id)
    assert dag_run.send_question(earlier, token="wrong").status_code == 401
    assert not stored(names(earlier)), "who proves nothing moves nothing"
    assert dag_run.send_question(earlier, task_id="first").json() == {"status": "already known"}
    assert dag_run.send_question(earlier, kickoff_id="another").status_code == 422
    assert dag_run.send_question(earlier).json() == {"status": "taken"}
    wait_until(lambda: dag_run.waiting(trigger)[0] == "scheduled", "the wait of before the upgrade to be woken")
    assert dag_run.messages(earlier).asked == ["first", "e5a3"]
    assert json.dumps(dag_run.question()["task_output"]) in json.dumps(dag_run.messages(earlier).as_dict())


@pytest.mark.parametrize("is_same", [True, False])
def test_an_event_for_a_reused_trigger_id_wakes_nobody(dag_run: RegisteredRun, is_same: bool) -> None:
    trigger_id = dag_run.wait(dag_run.kickoff, dag_run.execution_id)
    with create_session(scoped=False) as session:
        since = session.scalars(select(Trigger.created_date).where(Trigger.id == trigger_id)).one()
    deleted = since if is_same else since - timedelta(seconds=5)
    store.wake(store.DeferredTask(trigger_id, dag_run.run_id, f"wait-{trigger_id}", {}, deleted), {"state": "pending"})
    with create_session(scoped=False) as session:
        task = select(TaskInstance.state).where(TaskInstance.task_id == f"wait-{trigger_id}")
        assert session.scalars(task).one() == ("scheduled" if is_same else "deferred")
