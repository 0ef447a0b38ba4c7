"""From a Flow's question to its answer: a real service in its live dialect, a real inbox, real tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests
from registered_run import RegisteredRun, StoredVariables, Task, store_variables

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox import rows as questions
from airflow_crew_provider.inbox import source
from airflow_crew_provider.inbox.source import InboxSource
from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.questions import Terms, question_in
from airflow_crew_provider.stored_names import POSTED_KEY, RESUME_KEY
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from airflow_crew_provider.wait.poller import Poller
from crew_service import targets
from crew_service.local import LocalService, running_service
from scripts.stack import wait_until
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.slow
FLOWS = Path(__file__).parents[1] / "service" / "crewai" / "crews" / "flows.py"
SECRET = "signing-secret-of-the-console"
CONN = "crew_live_flow"


@pytest.fixture(scope="module")
def flow(inbox: Any) -> Iterator[LocalService]:
    pytest.importorskip("crewai")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FLOWS.parent))
        patch.setenv("PYTHONPATH", str(FLOWS.parent))
        crew = targets.load(f"{FLOWS}:BriefingFlow")
        options = {"flow_webhook": f"{inbox.url}/flow/{CONN}", "flow_webhook_secret": SECRET}
        with running_service(crew=crew, dialect="live", **options) as service:
            yield service


@pytest.fixture
def connect(flow: LocalService, dag_run: RegisteredRun, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def connect(**fields: Any) -> None:
        extra = {"flow_webhook_secret": SECRET, "kind": "flow"}
        connection = {"conn_type": "crew", "host": flow.url, "password": flow.token, "extra": extra, **fields}
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(connection))

    connect()
    store_variables(monkeypatch)
    return connect


def asked(kickoff_id: str, by: Task | None = None) -> Execution:
    """Poll until the question is there, in the messages for what this task has sent or as a signed webhook."""
    hook = CrewHook(CONN)
    polls = Poller(hook, InboxSource(hook, by.pushed[POSTED_KEY] if by else None))

    def look() -> Execution | None:
        seen = polls.poll(kickoff_id)
        return seen if isinstance(seen, Execution) and seen.crew_task_id else None

    return wait_until(look, "the question")


def resume(seen: Execution, **answer: Any) -> CrewResumeOperator:
    given = {"execution_id": seen.kickoff_id, "crew_task_id": seen.crew_task_id, "human_feedback": "", **answer}
    return CrewResumeOperator(task_id="resume", crew_conn_id=CONN, **given)


def address(seen: Execution) -> Any:
    found = source.stored_address(CONN, str(seen.crew_task_id))
    assert found
    assert found.callback_url
    return found


@pytest.mark.row("F4")
@pytest.mark.row("F5")
def test_a_flow_is_answered_at_the_address_of_its_question(
    dag_run: RegisteredRun,
    connect: Callable[..., None],
    flow: LocalService,
    caplog: pytest.LogCaptureFixture,
    log_text: Callable[[], str],
) -> None:
    kickoff_id = CrewHook(CONN).kickoff({"topic": "ducks"})
    first = asked(kickoff_id)
    assert (first.question, first.outcomes) == ("May this go out?", ["publish", "rework", "drop"])
    assert (first.output, first.flow_id) == ("Draft 1 on ducks", kickoff_id)
    assert str(first.view).endswith(kickoff_id)  # as the status names it, beside the question of the webhook
    assert asyncio.run(InboxSource(CrewHook(CONN)).was_asked(kickoff_id))
    token = address(first).response_token
    assert token not in json.dumps(first.record())
    _refused_at_a_foreign_host(dag_run, connect, first, token)

    task = Task(dag_run, f"resume-{uuid4().hex[:6]}")
    assert task.run(resume(first, outcome="rework", human_feedback="shorter")) == kickoff_id
    assert task.pushed[RESUME_KEY]["status"] == "accepted"
    assert source.stored_address(CONN, str(first.crew_task_id)) is None
    assert not asyncio.run(InboxSource(CrewHook(CONN)).was_asked("another"))
    again = asked(kickoff_id)
    assert (again.output, again.crew_task_id != first.crew_task_id) == ("Draft 2 on ducks, after: shorter", True)
    assert task.run(resume(first, outcome="rework", human_feedback="shorter")) == kickoff_id  # a retry sends nothing
    with pytest.raises(CrewTaskFailed, match="was already answered; nothing was sent"):
        Task(dag_run, f"resume-{uuid4().hex[:6]}").run(resume(first, outcome="drop"))

    _answered_elsewhere(dag_run, again)
    logged = log_text()
    assert "The answer (drop) was not used: the question was already answered by rita at 20" in logged
    assert "Sent the answer (drop)" not in logged
    place = asked(kickoff_id)
    assert (place.question, place.outcomes) == ("Where to?", [])
    assert Task(dag_run, "resume-place").run(resume(place, is_approve=False, human_feedback="the board")) == kickoff_id
    assert ended(kickoff_id) == "Draft 2 on ducks, after: shorter, sent to the board"
    assert token not in log_text() + caplog.text + json.dumps(task.pushed)


@pytest.mark.row("F3")
def test_a_flow_asking_by_kickoff_webhook_gets_the_chosen_outcome(
    dag_run: RegisteredRun, connect: Callable[..., None]
) -> None:
    connect(extra={"inbox_url": dag_run.inbox_url})
    start = Task(dag_run, "start")
    given = {"inputs": {"topic": "geese"}, "webhooks": "inbox", "check_inputs": False}
    kickoff_id = start.run(CrewKickoffOperator(task_id="start", crew_conn_id=CONN, **given))
    first = asked(kickoff_id, start)
    assert (first.question, first.outcomes) == ("May this go out?", ["publish", "rework", "drop"])
    pending = first.record(kickoff_id)
    terms = Terms()
    question = question_in(pending)
    assert question.choices(terms) == first.outcomes

    answer, rework = Task(dag_run, "answer"), question.meaning("rework", terms)
    again = answer.run(resume(first, **rework, human_feedback="shorter", webhooks="inbox"))
    second = asked(again, answer)
    assert (second.output, second.outcomes) == ("Draft 2 on geese, after: shorter", first.outcomes)
    place = Task(dag_run, "place")
    again = place.run(resume(second, outcome="publish", webhooks="inbox"))
    last = asked(again, place)
    assert (last.question, last.outcomes) == ("Where to?", [])
    again = Task(dag_run, "last").run(resume(last, is_approve=True, human_feedback="the board"))
    assert ended(again) == "Draft 2 on geese, after: shorter, sent to the board"


def ended(kickoff_id: str) -> Any:
    """Return the output of an execution once it is completed."""

    def look() -> Execution | None:
        seen = Poller(CrewHook(CONN)).poll(kickoff_id)
        return seen if isinstance(seen, Execution) and seen.state is ExecutionState.COMPLETED else None

    return wait_until(look, "the end").output


def _refused_at_a_foreign_host(
    dag_run: RegisteredRun, connect: Callable[..., None], seen: Execution, token: str
) -> None:
    """The connection was changed since the question came."""
    connect(host="http://127.0.0.1:9")
    task = Task(dag_run, f"resume-{uuid4().hex[:6]}")
    with pytest.raises(CrewTaskFailed, match="a host that connection 'crew_live_flow' does not allow") as refused:
        task.run(resume(seen, outcome="publish"))
    assert token not in str(refused.value)
    connect()


def _answered_elsewhere(dag_run: RegisteredRun, seen: Execution) -> None:
    url = address(seen).callback_url
    assert requests.post(url, json={"feedback": "publish", "outcome": "publish", "source": "rita"}, timeout=PATIENCE).ok
    late = Task(dag_run, f"resume-{uuid4().hex[:6]}")
    assert late.run(resume(seen, outcome="drop")) == seen.kickoff_id
    record = late.pushed[RESUME_KEY]
    assert (record["status"], record["taken"]) == ("already_responded", False)
    assert "answered by rita at 20" in record["message"]
    assert late.run(resume(seen, outcome="drop")) == seen.kickoff_id  # cleared
    record = late.pushed[RESUME_KEY]
    assert (record["status"], record["taken"]) == ("already_responded", False)
    assert address_is_gone(seen)


def address_is_gone(seen: Execution) -> bool:
    kept = StoredVariables.get(questions.answer_key(CONN, str(seen.crew_task_id)))
    return json.loads(kept) == questions.USED
