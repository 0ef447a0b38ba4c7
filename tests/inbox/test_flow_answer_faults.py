"""What may go wrong on an answer's way to a Flow: it is lost, refused, goes to the console, or needs the Flow's id."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from console import SECRET, TOKEN, question, signed
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from registered_run import RegisteredRun, Task, store_variables

from airflow_crew_provider.inbox import source
from airflow_crew_provider.models import Json
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.resume import sending
from airflow_crew_provider.stored_names import RESUME_KEY
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.slow
CONN = "crew_faulty_flow"
BEARER = "the-deployment's-own-token"
CALLBACK = "POST /human_feedback_requests*"
BY_FLOW_ID = "POST /resume_feedback"
ACCEPTED = {"status": "accepted", "request": {}}
TAKEN_BEFORE = Reply(
    status=409,
    body={
        "status": "already_responded",
        "responded_by": {"name": "airflow"},
        "responded_at": "2026-11-21T09:00:00Z",
    },
)
Ask = Callable[..., Json]


@pytest.fixture
def ask(dag_run: RegisteredRun, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Let the console ask, with an address at `at`, which is the deployment itself unless told otherwise."""
    store_variables(monkeypatch)
    monkeypatch.setattr(sending, "SETTLING", 0.3)

    def ask(*, at: str | None = server.url, of: str | None = None, **extra: Any) -> Json:
        known = {"flow_webhook_secret": SECRET, "kind": "flow", "timeout": 2, "kickoff_timeout": 2, **extra}
        fields = {"conn_type": "crew", "host": server.url, "password": BEARER, "extra": known}
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(fields))
        body = question(**({"flow_id": of} if of else {}))
        body["callback_url"] = f"{at}/human_feedback_requests/{body['id']}/respond?token={TOKEN}" if at else None
        raw, now = json.dumps(body).encode(), time.time()
        headers = {"X-CrewAI-Signature": signed(raw, now), "X-CrewAI-Timestamp": str(int(now))}
        told = dag_run.http.post(f"{dag_run.inbox_url}/flow/{CONN}", raw, headers=headers, timeout=PATIENCE)
        assert told.json() == {"status": "taken"}
        return body

    return ask


def answer(body: Json) -> CrewResumeOperator:
    return CrewResumeOperator(
        task_id="resume",
        crew_conn_id=CONN,
        execution_id=body["flow_id"],
        crew_task_id=body["id"],
        human_feedback="Shorter.",
        outcome="rework",
    )


def is_open(body: Json) -> bool:
    return source.stored_address(CONN, body["id"]) is not None


@pytest.mark.row("F4")
@pytest.mark.parametrize(
    ("second", "status"),
    [(TAKEN_BEFORE, "already_responded"), (Reply(body=ACCEPTED), "accepted")],
    ids=["had arrived", "had not"],
)
def test_an_unconfirmed_answer_is_resent_to_a_single_answer_address(
    dag_run: RegisteredRun,
    server: FaultServer,
    ask: Ask,
    second: Reply,
    status: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.on(CALLBACK, NoReply(RESET), second)
    body, task = ask(), Task(dag_run, f"resume-{uuid4().hex[:6]}")
    with pytest.raises(AirflowException, match="A retry of this task finds out whether the answer was accepted"):
        task.run(answer(body))
    assert is_open(body)
    assert task.run(answer(body)) == body["flow_id"]
    assert (task.pushed[RESUME_KEY]["status"], task.pushed[RESUME_KEY]["taken"]) == (status, True)
    assert "was not used" not in caplog.text, "the answer that counts may be the one of the first try"
    sent = [request.json for request in server.sent(CALLBACK)]
    assert sent == [{"feedback": "Shorter.", "outcome": "rework", "source": "airflow"}] * 2
    assert not is_open(body)
    assert task.run(answer(body)) == body["flow_id"]
    assert len(server.sent(CALLBACK)) == 2, "a third try sends nothing"


@pytest.mark.row("F4")
def test_an_answer_without_an_address_never_reaches_the_next_question(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask
) -> None:
    first = ask(at=None)
    ask(at=None, of=first["flow_id"])
    with pytest.raises(CrewTaskFailed, match=r"has asked another question since .*nothing was sent"):
        Task(dag_run, f"resume-{uuid4().hex[:6]}").run(answer(first))
    assert server.sent(BY_FLOW_ID) == []


@pytest.mark.row("F5")
def test_a_refused_address_hides_its_token_and_can_be_retried(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    server.on(CALLBACK, Reply(status=401, body={"detail": f"token {TOKEN} is not valid"}), ACCEPTED)
    body, task = ask(), Task(dag_run, f"resume-{uuid4().hex[:6]}")
    with pytest.raises(CrewTaskFailed, match="401") as refused:
        task.run(answer(body))
    assert "This answer was not accepted" in str(refused.value)
    assert TOKEN not in str(refused.value) + caplog.text + json.dumps(task.pushed)
    assert is_open(body)
    assert task.run(answer(body)) == body["flow_id"]


@pytest.mark.row("F5")
def test_an_allowed_console_gets_the_answer_without_the_deployments_token(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask
) -> None:
    with FaultServer() as console:
        console.on(CALLBACK, ACCEPTED)
        body = ask(at=console.url, callback_hosts=[f"{console.host}:{console.port}"])
        assert Task(dag_run, f"resume-{uuid4().hex[:6]}").run(answer(body)) == body["flow_id"]
        [sent] = console.sent(CALLBACK)
    assert sent.target.endswith(f"/{body['id']}/respond?token={TOKEN}")
    assert sent.token is None
    assert BEARER not in str(sent.headers)
    assert server.sent("POST /*") == []


def test_a_question_without_an_address_is_answered_by_flow_id(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask
) -> None:
    body, task = ask(at=None), Task(dag_run, f"resume-{uuid4().hex[:6]}")
    paused = {"state": "PAUSED", "flow_id": body["flow_id"], "kickoff_id": body["flow_id"]}
    server.on(f"GET /status/{body['flow_id']}", paused).on(BY_FLOW_ID, ACCEPTED)
    assert task.run(answer(body)) == body["flow_id"]
    [sent] = server.sent(BY_FLOW_ID)
    assert sent.json == {
        "flow_id": body["flow_id"],
        "feedback": "Shorter.",
        "outcome": "rework",
        "source": "airflow",
    }
    assert sent.token == f"Bearer {BEARER}"
    assert not is_open(body)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_lost_answer_by_flow_id_reaches_no_later_question(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask, keyed: bool
) -> None:
    body, task = ask(at=None, idempotency_keys=keyed), Task(dag_run, f"resume-{uuid4().hex[:6]}")
    paused = {"state": "PAUSED", "flow_id": body["flow_id"], "kickoff_id": body["flow_id"]}
    server.on(f"GET /status/{body['flow_id']}", paused).on(BY_FLOW_ID, NoReply(RESET), ACCEPTED)
    for _ in range(2):
        with pytest.raises(AirflowException):
            task.run(answer(body))
    assert len(server.sent(BY_FLOW_ID)) == 1


def asks_again_after_losing_an_answer(server: FaultServer, ask: Ask, task: Task) -> Json:
    """Let the Flow take an answer whose response is lost, and ask its next question; return the first one."""
    body = ask(at=None)
    paused = {"state": "PAUSED", "flow_id": body["flow_id"], "kickoff_id": body["flow_id"]}
    server.on(f"GET /status/{body['flow_id']}", paused).on(BY_FLOW_ID, NoReply(RESET), ACCEPTED)
    with pytest.raises(AirflowException, match="A retry of this task finds out whether the answer was accepted"):
        task.run(answer(body))
    ask(at=None, of=body["flow_id"])
    return body


@pytest.mark.row("N13")
def test_a_flow_that_asks_on_has_taken_the_lost_answer(dag_run: RegisteredRun, server: FaultServer, ask: Ask) -> None:
    task = Task(dag_run, f"resume-{uuid4().hex[:6]}")
    body = asks_again_after_losing_an_answer(server, ask, task)
    assert task.run(answer(body)) == body["flow_id"]
    assert task.pushed[RESUME_KEY]["taken"] is True
    assert len(server.sent(BY_FLOW_ID)) == 1


@pytest.mark.row("N19")
def test_another_answer_never_reaches_the_flows_next_question(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask
) -> None:
    task = Task(dag_run, f"resume-{uuid4().hex[:6]}")
    body = asks_again_after_losing_an_answer(server, ask, task)
    other = answer(body)
    other.outcome = "publish"
    with pytest.raises(CrewTaskFailed, match=r"has asked another question since .*nothing was sent"):
        task.run(other)
    assert len(server.sent(BY_FLOW_ID)) == 1


@pytest.mark.row("F4")
@pytest.mark.parametrize("status", [400, 401, 404, 429])
def test_a_refused_resend_leaves_the_lost_answers_fate_open(
    dag_run: RegisteredRun, server: FaultServer, ask: Ask, status: int
) -> None:
    server.on(CALLBACK, NoReply(RESET), Reply(status=status, body={"detail": "no"}))
    body, task = ask(), Task(dag_run, f"resume-{uuid4().hex[:6]}")
    with pytest.raises(AirflowException):
        task.run(answer(body))
    with pytest.raises(AirflowException, match="An earlier try sent this answer, and its outcome is unknown") as error:
        task.run(answer(body))
    assert "not accepted" not in str(error.value)
