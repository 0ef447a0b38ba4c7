"""How long what a Flow has asked is kept: as long as the DAG runs that started it or wait for it, and a day."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import requests
from airflow.models.variable import Variable
from airflow.utils.session import create_session
from console import SECRET, TOKEN, question, signed
from faults.server import FaultServer
from faults.variables import NamedVariables, Variables, stand_in_for_variables
from registered_run import RegisteredRun, Task, store_variables
from sqlalchemy import delete, select

from airflow_crew_provider.inbox import registering, source, store
from airflow_crew_provider.inbox import rows as questions
from airflow_crew_provider.inbox.messages import HumanInputRequest, InboxMessages, registered
from airflow_crew_provider.inbox.rows import RegisteredTask, messages_key
from airflow_crew_provider.models import Json
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.stored_names import FLOW_PREFIX, FLOW_RUN_KEY
from scripts.stack.waiting import PATIENCE

CONN = "crew_kept_flow"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
Ask = Callable[..., Json]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server.on("GET /inputs", {"inputs": []})


@pytest.fixture
def ask(encrypted: None, dag_run: RegisteredRun, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Let the console ask about an execution; nothing of a Flow is stored before and after."""
    forget()
    store_variables(monkeypatch)
    known = {"flow_webhook_secret": SECRET, "kind": "flow", "timeout": 2, "kickoff_timeout": 2}
    fields = {"conn_type": "crew", "host": server.url, "password": "t", "extra": known}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(fields))

    def ask(**fields: Any) -> Json:
        body = question(**fields)
        body["callback_url"] = f"{server.url}/respond?token={TOKEN}"
        sent = send(dag_run, body)
        assert sent.json() == {"status": "taken"}
        return body

    yield ask
    forget()


def forget() -> None:
    with create_session(scoped=False) as session:
        mine = delete(Variable).where(Variable.key.startswith(FLOW_PREFIX, autoescape=True))
        session.execute(mine, execution_options={"synchronize_session": False})


def send(dag_run: RegisteredRun, body: Json) -> requests.Response:
    raw, now = json.dumps(body).encode(), time.time()
    headers = {"X-CrewAI-Signature": signed(raw, now), "X-CrewAI-Timestamp": str(int(now))}
    return dag_run.http.post(f"{dag_run.inbox_url}/flow/{CONN}", raw, headers=headers, timeout=PATIENCE)


def rows() -> dict[str, str]:
    """Return what stands in Variables for Flows, as whoever may read Variables sees it."""
    with create_session(scoped=False) as session:
        mine = select(Variable).where(Variable.key.startswith(FLOW_PREFIX, autoescape=True))
        return {row.key: f"{row.get_val()} {row.description}" for row in session.scalars(mine)}


def of(body: Json) -> set[str]:
    """Return the names under which a question is stored."""
    named = (questions.questions_key(CONN, body[name]) for name in ("flow_id", "flow_execution_id"))
    return {questions.answer_key(CONN, body["id"]), *named}


def kick_off(dag_run: RegisteredRun, server: FaultServer) -> str:
    kickoff_id = str(uuid4())
    server.on("POST /kickoff", {"kickoff_id": kickoff_id})
    name = f"kickoff-{uuid4().hex[:6]}"
    return str(Task(dag_run, name).run(CrewKickoffOperator(task_id=name, inputs={}, crew_conn_id=CONN)))


def wait(dag_run: RegisteredRun, server: FaultServer, kickoff_id: str, flow_id: str) -> Json:
    paused = {"state": "PAUSED", "status": "Waiting", "flow_id": flow_id, "kickoff_id": kickoff_id}
    server.on(f"GET /status/{kickoff_id}", paused)
    name = f"wait-{uuid4().hex[:6]}"
    sensor = CrewStatusSensor(task_id=name, kickoff_id=kickoff_id, crew_conn_id=CONN, poke_interval=0.1)
    return dict(Task(dag_run, name).run(sensor))


@pytest.fixture
def other_run(dag_run: RegisteredRun) -> RegisteredRun:
    return RegisteredRun(dag_run.inbox, dag_run.http)


@pytest.mark.row("A24")
def test_flow_questions_go_within_a_day_after_the_starting_run(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask
) -> None:
    body = ask(flow_execution_id=kick_off(dag_run, server))
    now, kept = datetime.now(UTC), rows().keys()
    assert of(body) < kept
    assert len(kept) == 4

    store.sweep(now + 30 * DAY)
    assert rows().keys() == kept, "the run goes on"
    dag_run.end_run(end_date=now)
    store.sweep(now + HOUR)
    assert rows().keys() == kept, "it may be cleared"
    store.sweep(now + DAY - HOUR)
    assert not rows()


@pytest.mark.row("A24")
def test_flow_questions_stay_with_failed_runs_that_may_be_cleared(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask
) -> None:
    body = ask(flow_execution_id=kick_off(dag_run, server))
    now = datetime.now(UTC)
    dag_run.end_run(state="failed", end_date=now)
    store.sweep(now + 2 * DAY)
    assert of(body) < rows().keys()
    store.sweep(now + 61 * DAY)
    assert not of(body) & rows().keys()


@pytest.mark.row("A24")
def test_flow_questions_go_with_their_deleted_run_and_others_stay(
    dag_run: RegisteredRun, other_run: RegisteredRun, server: FaultServer, ask: Ask
) -> None:
    ask(flow_execution_id=kick_off(dag_run, server))
    other, of_nobody = ask(flow_execution_id=kick_off(other_run, server)), ask()
    dag_run.delete_run()
    store.sweep(datetime.now(UTC))
    left = {key for key in rows() if not key.startswith(FLOW_RUN_KEY)}
    assert left == of(other) | of(of_nobody)
    assert len(rows()) == len(left) + 1


@pytest.mark.row("A24")
def test_flow_questions_stay_while_another_run_waits_by_another_id(
    dag_run: RegisteredRun, other_run: RegisteredRun, server: FaultServer, ask: Ask
) -> None:
    kickoff_id = kick_off(dag_run, server)
    body = ask(flow_execution_id=kickoff_id)
    found = wait(other_run, server, kickoff_id, body["flow_id"])
    assert (found["state"], found["crew_task_id"]) == ("pending", body["id"])
    dag_run.delete_run()
    store.sweep(datetime.now(UTC))
    assert of(body) < rows().keys()
    other_run.delete_run()
    store.sweep(datetime.now(UTC))
    assert not rows()


@pytest.mark.row("A24")
def test_questions_known_only_by_flow_id_go_with_their_run(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask
) -> None:
    body = ask()
    assert wait(dag_run, server, str(uuid4()), body["flow_id"])["crew_task_id"] == body["id"]
    dag_run.delete_run()
    store.sweep(datetime.now(UTC))
    assert not rows()


def test_a_runs_names_hold_no_credential_or_draft(dag_run: RegisteredRun, server: FaultServer, ask: Ask) -> None:
    body = ask(flow_execution_id=kick_off(dag_run, server))
    [shown] = [text for key, text in rows().items() if key.startswith(FLOW_RUN_KEY)]
    assert dag_run.run_id in shown
    assert not [each for each in (TOKEN, SECRET, body["output"]) if each in shown]


def test_without_a_secret_for_webhooks_nothing_is_noted(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"conn_type": "crew", "host": server.url, "password": "t", "extra": {"kickoff_timeout": 2}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(fields))
    kick_off(dag_run, server)
    assert not rows()


def test_a_run_that_cannot_be_noted_fails_nothing(dag_run: RegisteredRun, server: FaultServer, ask: Ask) -> None:
    with create_session(scoped=False) as session:
        session.connection().exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON variable WHEN NEW.key LIKE 'crew_flow_%' "
            "BEGIN SELECT RAISE(ABORT, 'read-only'); END"
        )
    try:
        assert kick_off(dag_run, server)
    finally:
        with create_session(scoped=False) as session:
            session.connection().exec_driver_sql("DROP TRIGGER refuse")
    assert not rows()


def test_undecryptable_questions_keep_nothing_else_from_being_removed(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(flow_execution_id=kick_off(dag_run, server))
    second = ask(flow_execution_id=kick_off(dag_run, server))
    spoil(questions.questions_key(CONN, first["flow_execution_id"]))
    dag_run.delete_run()
    store.sweep(datetime.now(UTC))
    assert rows().keys() == of(first)
    assert not of(second) & rows().keys()


@pytest.mark.row("A24")
def test_a_question_beside_an_undecryptable_one_is_not_acknowledged(
    dag_run: RegisteredRun, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    first = ask()
    spoil(questions.questions_key(CONN, first["flow_id"]))
    second = {**first, "id": str(uuid4())}
    refused = send(dag_run, second)
    assert (refused.status_code, refused.json()) == (503, {"detail": "The webhook could not be stored"})
    assert "fernet_key in this process differs" in caplog.text
    assert questions.answer_key(CONN, second["id"]) not in rows()


@pytest.mark.row("A24")
def test_a_webhook_beside_undecryptable_messages_is_not_acknowledged(
    encrypted: None, dag_run: RegisteredRun, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(messages_key(dag_run.kickoff.registration.id))
    refused = dag_run.send_question()
    assert (refused.status_code, refused.json()) == (503, {"detail": "The webhook could not be stored"})
    assert "fernet_key in this process differs" in caplog.text


@pytest.mark.row("A14", "N17")
@pytest.mark.parametrize("variables", [Variables, NamedVariables], ids=["Airflow 3.0 to 3.2", "other versions"])
def test_a_retry_leaves_unreadable_messages_unchanged(
    monkeypatch: pytest.MonkeyPatch, variables: type[Variables]
) -> None:
    kept = stand_in_for_variables(monkeypatch, variables())
    registration, _ = registered("https://airflow.example/crew-inbox", None)
    task, nothing = RegisteredTask(registration, "dag", "run", "kickoff"), InboxMessages(registration.id)
    registering.keep_registration(task, nothing)
    asked = nothing.asking(HumanInputRequest("task-1", "Draft", "k-1", "k-1")).as_dict()
    registering.put(task.messages_key, asked, task.description, sealed=True)
    kept.encrypted.add(task.messages_key)
    registering.keep_registration(replace(task, kickoff_id="k-1"), nothing)
    kept.encrypted.clear()  # the earlier key, or the database, is back
    assert source.get(task.messages_key) == asked


def spoil(key: str) -> None:
    """Leave a Variable as one that Airflow encrypted by a key that is gone."""
    with create_session(scoped=False) as session:
        row = session.scalars(select(Variable).where(Variable.key == key)).one()
        row._val, row.is_encrypted = "gAAAA, by a key that is gone", True
