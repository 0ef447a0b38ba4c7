"""Signed webhooks of Flows: what is refused, what is taken once, and which waiting task goes on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from airflow.models.variable import Variable
from airflow.utils.session import create_session
from console import CREW, SECRET, TOKEN, nested, question, signed
from cryptography.fernet import Fernet
from registered_run import RegisteredRun, read_key_anew
from sqlalchemy import func, select

from airflow_crew_provider.compat.encryption import NotDecrypted, seal, unseal
from airflow_crew_provider.inbox import rows as questions
from airflow_crew_provider.inbox import store
from airflow_crew_provider.inbox.flow_webhooks import is_signed
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import FLOW_PREFIX
from airflow_crew_provider.wait.watch import PENDING
from scripts.stack import wait_until
from scripts.stack.waiting import PATIENCE

Send = Callable[..., requests.Response]


@pytest.fixture
def send(dag_run: RegisteredRun, monkeypatch: pytest.MonkeyPatch) -> Send:
    """Send a webhook as the console does, to a connection that knows its secret."""
    fields = {"conn_type": "crew", "host": CREW, "password": "t", "extra": {"flow_webhook_secret": SECRET}}
    monkeypatch.setenv("AIRFLOW_CONN_CREW_FLOW", json.dumps(fields))
    fields["extra"] = {}
    monkeypatch.setenv("AIRFLOW_CONN_CREW_PLAIN", json.dumps(fields))

    def send(
        body: Any, *, to: str = "crew_flow", age: float = 0, secret: str = SECRET, names: str = "X-CrewAI-"
    ) -> requests.Response:
        raw, at = json.dumps(body).encode(), time.time() - age
        headers = {f"{names}Signature": signed(raw, at, secret), f"{names}Timestamp": str(int(at))}
        return dag_run.http.post(f"{dag_run.inbox_url}/flow/{to}", raw, headers=headers, timeout=PATIENCE)

    return send


def stored() -> int:
    with create_session(scoped=False) as session:
        kept = session.scalar(select(func.count()).where(Variable.key.startswith(FLOW_PREFIX, autoescape=True)))
        return int(kept or 0)


@pytest.mark.row("F2")
@pytest.mark.parametrize(
    "wrong",
    [{"secret": "another"}, {"age": 600}, {"age": -600}, {"to": "crew_plain"}, {"to": "nobody"}],
    ids=lambda wrong: "-".join(wrong),
)
def test_what_is_not_proven_is_refused_and_nothing_is_stored(send: Send, wrong: Json) -> None:
    before = stored()
    refused = send(question(), **wrong)
    assert refused.status_code == 401
    assert refused.json() == {"detail": "Unknown address, or the signature is invalid or too old"}
    assert stored() == before


@pytest.mark.row("F2")
@pytest.mark.parametrize("secret", [12345, ["a"], True, "", " "], ids=str)
def test_a_secret_that_a_task_refuses_verifies_no_webhook(
    send: Send, monkeypatch: pytest.MonkeyPatch, secret: Any
) -> None:
    extra = {"flow_webhook_secret": secret}
    connection = {"conn_type": "crew", "host": CREW, "password": "t", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_CREW_ODD", json.dumps(connection))
    before = stored()
    assert send(question(), to="crew_odd", secret=str(secret).strip()).status_code == 401
    assert stored() == before


@pytest.mark.row("F2")
def test_an_unsigned_or_altered_webhook_is_refused(dag_run: RegisteredRun, send: Send) -> None:
    url = f"{dag_run.inbox_url}/flow/crew_flow"
    assert dag_run.http.post(url, json=question(), timeout=PATIENCE).status_code == 401
    at = str(int(time.time()))
    for signature in (signed(b"{}", time.time()), "sha256=", "sha256=ä".encode().decode("latin-1")):
        headers = {"X-CrewAI-Signature": signature, "X-CrewAI-Timestamp": at}
        assert dag_run.http.post(url, json=question(), headers=headers, timeout=PATIENCE).status_code == 401


@pytest.mark.row("F2")
@pytest.mark.parametrize("to", ["crew_flow", "crew_plain", "nobody"])
def test_the_body_size_does_not_reveal_which_connections_exist(dag_run: RegisteredRun, send: Send, to: str) -> None:
    large = "x" * (1024 * 1024 + 1)
    assert send(large, to=to, secret="another").status_code == 413
    assert send(large, to=to, secret="another", age=600).status_code == 401
    assert dag_run.http.post(f"{dag_run.inbox_url}/flow/{to}", large, timeout=PATIENCE).status_code == 401


@pytest.mark.row("F2")
@pytest.mark.parametrize("to", ["crew_flow", "nobody"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-CrewAI-Timestamp": "{now}"},
        {"X-CrewAI-Signature": "sha256=0"},
        {"X-CrewAI-Signature": "sha256=0", "X-CrewAI-Timestamp": "1900"},
        {"Webhook-Signature": "v1,0", "X-CrewAI-Timestamp": "{now}"},
        {"Webhook-Signature": "v1,0", "Webhook-Timestamp": "{now}", "X-Signature": "sha256=0"},
    ],
)
def test_a_webhook_lacking_signature_or_time_is_refused_unread(
    dag_run: RegisteredRun, send: Send, to: str, headers: dict[str, str]
) -> None:
    where = urlsplit(f"{dag_run.inbox_url}/flow/{to}")
    given = {"Host": where.netloc, "Content-Length": "1000", **headers}
    lines = [f"{name}: {text}" for name, text in given.items()]
    head = "\r\n".join([f"POST {where.path} HTTP/1.1", *lines, "", ""]).replace("{now}", str(int(time.time())))
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=PATIENCE) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


@pytest.mark.row("F2")
def test_a_signature_holds_for_five_minutes() -> None:
    raw, at = b'{"id": "1"}', 1_900_000_000
    headers = {"x-crewai-signature": signed(raw, at), "x-crewai-timestamp": str(at)}
    assert is_signed(SECRET, headers, raw, now=at + 299)
    assert not is_signed(SECRET, headers, raw, now=at + 301)
    assert not is_signed(SECRET, {**headers, "x-crewai-timestamp": str(at + 60)}, raw, now=at + 301)


@pytest.mark.row("F2")
@pytest.mark.parametrize("shape", [dict, nested], ids=["flat", "nested"])
@pytest.mark.parametrize("named_by", ["flow_id", "flow_execution_id", "kickoff_id"])
def test_either_question_shape_is_taken_once_and_wakes_its_task(
    dag_run: RegisteredRun, send: Send, shape: Callable[[Json], Json], named_by: str
) -> None:
    body = question(**{named_by: dag_run.execution_id})
    mine = dag_run.wait(dag_run.kickoff, dag_run.execution_id, crew_conn_id="crew_flow")
    others = dag_run.wait(dag_run.kickoff, dag_run.execution_id, crew_conn_id="crew_other")
    names = "X-CrewAI-" if shape is dict else "X-"
    first = send(shape(body), names=names)
    assert (first.status_code, first.json()) == (200, {"status": "taken"})
    wait_until(lambda: dag_run.waiting(mine)[0] == "scheduled", "the task to be woken")
    event = dag_run.waiting(mine)[1]
    assert (event["kind"], event["kickoff_id"], event["crew_task_id"]) == (PENDING, dag_run.execution_id, body["id"])
    assert TOKEN not in json.dumps(event)
    assert dag_run.still_waits(others)
    kept = stored()
    again = send(shape(body), names=names)
    assert (again.status_code, again.json()) == (200, {"status": "already known"})
    assert stored() == kept


@pytest.mark.row("F2")
def test_an_unknown_flow_is_taken_and_wakes_nobody(dag_run: RegisteredRun, send: Send) -> None:
    waiting = dag_run.wait(dag_run.kickoff, dag_run.execution_id, crew_conn_id="crew_flow")
    assert send(question()).json() == {"status": "taken"}
    assert dag_run.still_waits(waiting)


@pytest.mark.row("F2")
@pytest.mark.parametrize(
    "body",
    [[], "text", {"event_type": "new_request"}, question(id=None), question(emit="publish"), question(id={"a": 1})],
)
def test_what_cannot_be_read_is_refused(send: Send, body: Any) -> None:
    before = stored()
    assert send(body).status_code == 422
    assert stored() == before


def test_an_event_that_asks_nothing_is_acknowledged(send: Send) -> None:
    before = stored()
    for body in (question(event_type="responded"), question(status="responded")):
        assert send(body).json() == {"status": "this is not a question; nothing changed"}
    assert stored() == before


@pytest.mark.row("F5")
@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example.com/respond?token=",
        "http://crew.example.com:9999/respond?token=",
        "http://crew.example.com:8300@evil.example.com/respond?token=",
        "http://evil.example.com\\@crew.example.com:8300/respond?token=",
        "ftp://crew.example.com:8300/respond?token=",
        "http://crew.example.com:8300.evil.example.com/respond?token=",
    ],
)
def test_a_foreign_callback_host_is_refused_and_stored_nowhere(
    dag_run: RegisteredRun, send: Send, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = stored()
    waiting = dag_run.wait(dag_run.kickoff, dag_run.execution_id, crew_conn_id="crew_flow")
    refused = send(question(flow_id=dag_run.execution_id, callback_url=url + TOKEN))
    assert refused.status_code == 422
    assert "host" in refused.json()["detail"]
    assert TOKEN not in refused.text + caplog.text
    assert stored() == before
    assert dag_run.still_waits(waiting)


def rows_of(body: Json) -> list[tuple[str, str, str]]:
    """Return the Variables of a question: key, what Airflow shows to whoever may read it, and what it means."""
    keys = [questions.answer_key("crew_flow", body["id"])]
    keys += [questions.questions_key("crew_flow", body[name]) for name in ("flow_id", "flow_execution_id")]
    with create_session(scoped=False) as session:
        mine = select(Variable).where(Variable.key.in_(keys))
        return [(row.key, str(row.get_val()), unseal(str(row.get_val()))) for row in session.scalars(mine)]


@pytest.mark.usefixtures("encrypted")
@pytest.mark.parametrize("now", ["", Fernet.generate_key().decode()], ids=["none", "another"])
def test_text_encrypted_with_lost_keys_is_not_taken_for_plain(monkeypatch: pytest.MonkeyPatch, now: str) -> None:
    text = seal("{}")
    assert unseal(text) == "{}"
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", now)
    read_key_anew()
    with pytest.raises(NotDecrypted, match="fernet_key"):
        unseal(text)


@pytest.mark.usefixtures("encrypted")
def test_readers_of_variables_do_not_see_what_answers_a_question(send: Send) -> None:
    body = question()
    assert send(body).ok
    rows = rows_of(body)
    assert len(rows) == 3
    assert not [shown for _, shown, _ in rows if TOKEN in shown or body["output"] in shown]
    assert all("secret" in key for key, _, plain in rows if TOKEN in plain)
    assert any(body["callback_url"] in json.loads(plain).values() for key, _, plain in rows if "secret" in key)


@pytest.mark.usefixtures("encrypted")
def test_what_nobody_has_answered_in_time_is_removed(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young, mine = question(), question(), FLOW_PREFIX + "of_somebody_else"
    with monkeypatch.context() as earlier:
        earlier.setattr(questions, "KEPT_FOR", -timedelta(seconds=1))
        assert send(old).ok
        Variable.set(mine, "a Variable of a user")
    assert send(young).ok
    assert len(rows_of(old)) == 3
    store.sweep(datetime.now(UTC))
    assert (len(rows_of(old)), len(rows_of(young))) == (0, 3)
    assert Variable.get(mine) == "a Variable of a user"
