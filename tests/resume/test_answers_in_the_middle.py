"""The answer to a question in the middle of a task is sent once, as the word that answers it, and to no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import TaskRun, run

from airflow_crew_provider.api.status import HASH_OFFER
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.resume.record import ResumeRecord
from airflow_crew_provider.stored_names import RESUME_KEY
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow", "quick_resume")
POST, POLL = "POST /resume", "GET /status/k-1"
ASK = {"kind": "tool", "agent": "Writer", "tool": "send_mail", "arguments": {"to": "ann"}, "number": 3}
TEXT = 'Question 3\nsend_mail\n{\n  "to": "ann"\n}'
RUNNING = {"status": "running", "current_task": "draft_task", "progress": {"completed_tasks": 0, "total_tasks": 1}}
RESUMED = {"status": "resumed", "message": "Execution resumed"}
REVIEW = {
    "execution_id": "k-1",
    "crew_task_id": "draft_task#3",
    "is_approve": True,
    "outcome": "approve",
    "ask": ASK,
    "human_feedback": "",
    "output_sha256": output_sha256(TEXT),
}
DENIED = {**REVIEW, "is_approve": False, "outcome": "deny", "human_feedback": "ok"}
CHANGED = {**REVIEW, "edited_output": '{"to": 5}'}
LogText = Callable[[], str]


def asks(number: int = 3) -> Reply:
    body = {
        "status": "pending",
        "current_task": "draft_task",
        "task_id": f"draft_task#{number}",
        "task_output": TEXT if number == 3 else "another question",
        "question": "May send_mail run?",
        "outcomes": ["approve", "deny"],
        "ask": {**ASK, "number": number},
    }
    return Reply(body=body, headers={HASH_OFFER: "sha256"})


@pytest.fixture(autouse=True)
def service(server: FaultServer) -> None:
    server.on(POLL, lambda _: Reply(body=RUNNING) if server.sent(POST) else asks()).on(POST, RESUMED)


def resume(review: Any = REVIEW, **more: Any) -> CrewResumeOperator:
    return CrewResumeOperator(task_id="resume", review=review, **more)


@pytest.mark.parametrize("review", [REVIEW, DENIED, CHANGED], ids=["approve", "deny", "changed"])
def test_a_word_and_its_details_carry_the_shown_questions_hash(server: FaultServer, review: Any) -> None:
    assert run(resume(review)) == "k-1"
    [body] = [request.json for request in server.sent(POST)]
    for name in ("outcome", "is_approve", "human_feedback", "output_sha256"):
        assert body[name] == review[name]
    assert body["task_id"] == "draft_task#3"
    edit = {"text": '{"to": 5}', "output_sha256": REVIEW["output_sha256"]}
    assert body.get("edited_output") == (edit if review is CHANGED else None)


@pytest.mark.parametrize(("outcome", "is_approve"), [("deny", None), ("deny", False), ("approve", "true")])
def test_the_four_fields_take_the_word_too(server: FaultServer, outcome: str, is_approve: Any) -> None:
    fields = {"execution_id": "k-1", "crew_task_id": "draft_task#3", "outcome": outcome, "is_approve": is_approve}
    run(CrewResumeOperator(task_id="resume", **fields))
    [body] = [request.json for request in server.sent(POST)]
    assert (body["outcome"], body["human_feedback"]) == (outcome, "")


def test_an_answer_to_an_earlier_question_is_not_sent(server: FaultServer) -> None:
    server.on(POLL, asks(4))
    with pytest.raises(
        CrewTaskFailed, match="draft_task#3 of execution k-1 is no longer open; draft_task#4 is waiting"
    ):
        run(resume())
    assert server.sent(POST) == []


def test_an_unconfirmed_answer_is_not_sent_to_the_next_question(server: FaultServer) -> None:
    server.on(POLL, lambda _: asks(4) if server.sent(POST) else asks()).on(POST, NoReply(RESET))
    task_run = TaskRun(retries=2)
    with pytest.raises(CrewTryFailed):
        run(resume(), task_run)
    assert run(resume(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


REFUSED = Reply(status=400, body={"detail": "to must be a string"})


@pytest.mark.parametrize("has_next_round", [True, False])
def test_refused_tool_arguments_are_asked_about_in_the_next_round(
    server: FaultServer, log_text: LogText, has_next_round: bool
) -> None:
    server.on(POLL, asks()).on(POST, REFUSED)
    task_run = TaskRun("resume")
    if not has_next_round:
        with pytest.raises(CrewTaskFailed, match="to must be a string"):
            run(resume(CHANGED), task_run)
        return
    assert run(resume(CHANGED, has_next_round=True), task_run) == "k-1"
    assert "The changed arguments are not applied" in log_text()
    said = ResumeRecord.from_json(task_run.xcom[RESUME_KEY])
    assert said is not None
    assert said.answered is None  # so that the wait takes the question for an open one
    assert said.leaves_edit
    assert "to must be a string" in said.said["message"]


OF_FLOW = {"kind": "question", "agent": None, "tool": None, "arguments": None, "number": 3, "metadata": None}
NOBODY = {**REVIEW, "is_approve": None, "outcome": "expired", "ask": {**OF_FLOW, "deadline": "2026-01-01T00:00:00Z"}}
ANSWERED = {**NOBODY, "is_approve": True, "outcome": "answer", "human_feedback": "Ann"}


def test_nobodys_answer_is_not_sent_and_the_flow_goes_on(server: FaultServer, log_text: LogText) -> None:
    server.on(POLL, *[asks()] * 2, Reply(body=RUNNING))
    task_run = TaskRun("resume")
    assert run(resume(NOBODY), task_run) == "k-1"
    assert server.sent(POST) == []
    said = ResumeRecord.from_json(task_run.xcom[RESUME_KEY])
    assert said is not None
    assert not said.leaves_edit  # so that the next wait does not miss one
    assert "Nobody answered in time; the Flow continues without an answer" in log_text()


@pytest.mark.parametrize("is_open", [False, True], ids=["moved on", "refused"])
def test_an_answer_after_a_flow_questions_deadline_fails_nothing(
    server: FaultServer, log_text: LogText, is_open: bool
) -> None:
    refused = Reply(status=400, body={"detail": "The execution is not pending human feedback for this task"})
    server.on(POST, refused).on(POLL, *([asks()] if is_open else []), Reply(body=RUNNING))
    assert run(resume(ANSWERED)) == "k-1"
    assert len(server.sent(POST)) == is_open
    assert "This answer came after the deadline" in log_text()


def test_an_answer_before_the_deadline_that_is_refused_fails(server: FaultServer) -> None:
    server.on(POST, Reply(status=400, body={"detail": "no"})).on(POLL, asks())
    early = {**ANSWERED, "ask": {**OF_FLOW, "deadline": "2999-01-01T00:00:00Z"}}
    with pytest.raises(CrewTaskFailed, match="This answer was not accepted"):
        run(resume(early))
