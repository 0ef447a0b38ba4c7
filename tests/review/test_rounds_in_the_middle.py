"""Several questions and a draft, round by round, with a service that follows the contract on a real socket."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG
from airflow_stand_ins import Store, Supervisor, TaskParked
from faults.server import FaultServer
from faults.wire import Reply, Request
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.api.status import EDITS_OFFER, HASH_OFFER
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

pytestmark = pytest.mark.usefixtures("simulated_airflow")
Json = dict[str, Any]
FITS = {"approve": True, "deny": False, "answer": True, "done": True, "run_again": True, "fail": False}
WORDS = {"tool": ["approve", "deny"], "question": ["answer"], "unknown_outcome": ["done", "run_again", "fail"]}


def tool(to: str, key: str = "***") -> Json:
    return {"kind": "tool", "agent": "Writer", "tool": "send_mail", "arguments": {"to": to, "key": key}}


QUESTION = {"kind": "question", "agent": "Writer", "tool": None, "arguments": None}
UNKNOWN = {**tool("eve"), "kind": "unknown_outcome"}


class Service:
    """Asks one after the other, and takes only the answers that the contract allows."""

    longest = 1024 * 1024  # bytes of a body
    refuses_arguments = False

    def __init__(self, server: FaultServer, asks: list[Json | None]) -> None:
        self.asks, self.answers = asks, []  # type: ignore[var-annotated]
        server.on("GET /status/k-1", self.status).on("POST /resume", self.resume)

    @property
    def number(self) -> int:
        return len(self.answers) + 1

    def status(self, _: Request) -> Reply:
        if not self.asks:
            return Reply(body={"status": "completed", "result": {"output": "All", "tasks": []}, "execution_time": 1})
        ask = self.asks[0]
        body = {"status": "pending", "current_task": "write", "task_id": "write", "task_output": "Draft."}
        if ask is not None:
            body |= {"task_id": f"write#{self.number}", "task_output": self.text(ask), "question": "What now?"}
            body |= {"ask": {**ask, "number": self.number}, "outcomes": WORDS[ask["kind"]]}  # type: ignore[dict-item]
        return Reply(body=body, headers={HASH_OFFER: "sha256", EDITS_OFFER: "text"})

    def text(self, ask: Json) -> str:
        return f"Question {self.number}: what now?\n{json.dumps(ask['arguments'], sort_keys=True, indent=2)}"

    def resume(self, request: Request) -> Reply:
        body, ask = request.json, self.asks[0]
        if len(request.body) > self.longest:
            return Reply(status=413, body={"detail": f"at most {self.longest} bytes"})
        if self.refuses_arguments and "edited_output" in body:
            return Reply(status=400, body={"detail": "to must be a string"})
        expected = self.text(ask) if ask else "Draft."
        if body["output_sha256"] != output_sha256(expected):
            return Reply(status=400, body={"detail": "another question waits"})
        if ask and (body["outcome"] not in WORDS[ask["kind"]] or FITS[body["outcome"]] is not body["is_approve"]):
            return Reply(status=400, body={"detail": "no such answer"})
        self.answers.append(
            (body.get("outcome"), body["human_feedback"], (body.get("edited_output") or {}).get("text"))
        )
        self.asks.pop(0)
        return Reply(body={"status": "resumed", "message": "Execution resumed"})


@pytest.fixture
def service(server: FaultServer, connect: Connect) -> Service:
    connect(server.url)
    return Service(server, [tool("ann"), tool("ann"), QUESTION, UNKNOWN, None])


def wait() -> Json:
    record: Json = run(CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0.01, deferrable=False))
    return record


def reviewed(context: Json, supervisor: Supervisor, record: Json, option: str, text: str, **fields: Any) -> Json:
    context["task_state_store"], supervisor.asked = Store(), []  # a task of its own in each round
    review = CrewReviewOperator(task_id="review", pending=record, allow_edit=True)
    with pytest.raises(TaskParked) as parked:
        review.execute(context)
    answer = {"chosen_options": [option], "params_input": {"human_feedback": text, **fields}, "timedout": False}
    who = {"responded_at": datetime.now(UTC), "responded_by_user": {"id": "ann", "name": "Ann"}}
    kept = dict(parked.value.kwargs)
    return review.execute_complete(context, {**answer, **who}, kept["until"], kept["shown"])


def test_each_question_gets_its_answer_and_the_draft_its_review(
    context: Json, supervisor: Supervisor, service: Service
) -> None:
    changed = json.dumps({"to": "bob", "key": "***"})
    given: list[tuple[str, str, Json]] = [
        ("approve", "", {"edited_draft": changed}),
        ("deny", "ok", {}),  # the same call again
        ("answer", "Use the list.", {}),
        ("done", "sent", {}),
        ("approve", "", {}),
    ]
    kinds = []
    for option, text, fields in given:
        record = wait()
        kinds.append((record.get("ask") or {}).get("kind", "draft"))
        review = reviewed(context, supervisor, record, option, text, **fields)
        run(CrewResumeOperator(task_id="resume", review=review), TaskRun("resume"))
    assert wait()["output"] == "All"
    assert kinds == ["tool", "tool", "question", "unknown_outcome", "draft"]
    assert [each[:2] for each in service.answers] == [
        ("approve", ""),
        ("deny", "ok"),
        ("answer", "Use the list."),
        ("done", "sent"),
        (None, "Approved."),
    ]
    texts = [each[2] for each in service.answers]
    assert [text and json.loads(text) for text in texts] == [json.loads(changed), None, None, None, None]


# --- an answer that the service refuses ---


def next_round(context: Json, supervisor: Supervisor, service: Service, review: Json) -> tuple[Json, str]:
    """Resume with a review whose text the service refuses; return the next wait's record, and the next round's form."""
    with DAG("rounds", schedule=None):
        resume = CrewResumeOperator(task_id="resume", review=review, has_next_round=True)
        wait = CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0.01, deferrable=False, timeout=20)
        resume >> wait
    resumed = TaskRun("resume")
    assert run(resume, resumed) == "k-1"
    record = run(wait, TaskRun("wait", upstream={"resume": resumed}))
    context["ti"].task_id, supervisor.asked = "next", []
    with pytest.raises(TaskParked):
        CrewReviewOperator(task_id="next", pending=record, previous=review, round_number=2).execute(context)
    return record, supervisor.asked[0].body


@pytest.mark.parametrize("is_edit", [False, True])
def test_the_next_round_tells_that_the_answer_was_too_long(
    context: Json, supervisor: Supervisor, service: Service, is_edit: bool
) -> None:
    service.asks, service.longest = [None], 1000
    first, text = wait(), "Longer. " * 200
    option, fields = ("approve", {"edited_draft": text}) if is_edit else ("revise", {})
    review = reviewed(context, supervisor, first, option, "" if is_edit else text, **fields)
    record, form = next_round(context, supervisor, service, review)
    reason = "POST /resume returned 413: at most 1000 bytes. This answer is too long and was not accepted"
    assert record == {**first, "refusal": reason}
    assert f"> {reason}" in form
    assert ("**Edited in round 1**" in form, "**Requested in round 1**" in form) == (is_edit, not is_edit)
    assert "the draft had changed" not in form
    context["ti"].task_id = "task"
    shorter = reviewed(context, supervisor, record, "revise", "Shorter.")
    run(CrewResumeOperator(task_id="resume_2", review=shorter), TaskRun("resume_2"))
    assert service.answers == [(None, "Shorter.", None)]
    assert "refusal" not in wait()


def test_the_next_round_tells_why_changed_arguments_were_refused(
    context: Json, supervisor: Supervisor, service: Service
) -> None:
    service.refuses_arguments = True
    review = reviewed(context, supervisor, wait(), "approve", "", edited_draft='{"to": 5, "key": "***"}')
    record, form = next_round(context, supervisor, service, review)
    assert record["refusal"] == "POST /resume returned 400: to must be a string"
    assert "the service did not accept the changed arguments, and the tool has not run:" in form
    assert "Its reason:\n\n> POST /resume returned 400: to must be a string" in form
    assert service.answers == []
