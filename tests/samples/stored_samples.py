"""What this version stores, as samples: ``python tests/samples/stored_samples.py`` writes them for later releases."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_crew_provider import __version__
from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.api.requests import Kickoff
from airflow_crew_provider.exceptions import CrewBadRequest, CrewRateLimited, to_json
from airflow_crew_provider.inbox import rows
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.inbox.messages import HumanInputRequest, InboxMessages, Registration
from airflow_crew_provider.inbox.rows import FlowRun, RegisteredTask, with_question
from airflow_crew_provider.kickoff.post_record import PostRecord, Sender, fingerprint
from airflow_crew_provider.kickoff.request import name_of
from airflow_crew_provider.models import Execution, ExecutionState, Json, TaskResult, Webhooks
from airflow_crew_provider.review.record import QuestionRecord
from airflow_crew_provider.stored_names import KICKOFF_STATE
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.store import TaskRecord
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait.watch import KINDS, Outcome, Watch

HERE = Path(__file__).parent
INBOX = {"registration": "r", "kickoff_id": "k-1", "at": 1.0}
REGISTRATION = "registration"
IDENTITY = {"dag_id": "dag", "run_id": "run", "task_id": "kickoff", "map_index": -1}
ATTEMPT: Json = {"max_tries": 2, "retries": 2, "clears": 0, "run_started": 1.0, "run_after": 1.0}
SENDER = Sender("https://crew.example.com", "p", "c")


class Kept:
    """A memory that holds one record."""

    def __init__(self, record: Json | None = None) -> None:
        self.record = record or {}

    def recall(self) -> Json:
        return self.record

    def keep(self, record: Json) -> None:
        self.record = record

    def change(self, record: Json, failed: Any) -> None:
        self.record = record

    def forget(self) -> None:
        self.record = {}

    def close(self, record: Json) -> None:
        self.record = {**record, "over": True}


def execution_of(state: ExecutionState) -> Execution:
    task = TaskResult(task_id="draft_task", agent="Writer", output="a draft", execution_time=1.5)
    if state is ExecutionState.PENDING:
        return Execution(
            kickoff_id="k-1", state=state, raw_state="pending", output="a draft", crew_task_id="draft_task"
        )
    return Execution(
        kickoff_id="k-1", state=state, raw_state="completed", output="the end", tasks=(task,), usage={"total_tokens": 5}
    )


def _triggers() -> list[Any]:
    full = CrewStatusTrigger("k-1", "crew_default", 5.0, 1.0, 9.0, True, True, True, 60.0, True, inbox=INBOX)
    full.max_total_tokens, full.max_cost = 500, 0.5
    return [full.serialize(), CrewStatusTrigger("k-1", started=1.0).serialize()]


def _events() -> list[Json]:
    error = to_json(CrewRateLimited(429, "GET", "/status/k-1", "busy", 7.0))
    return [asdict(Outcome(kind, "k-1", "because", "draft_task", {"total_tokens": 5}, error)) for kind in KINDS]


def _records() -> list[Json]:
    return [execution_of(ExecutionState.COMPLETED).record(), execution_of(ExecutionState.PENDING).record("root")]


def _post(memory: Kept, fingerprint: str = "f", **attempt: Any) -> PostRecord:
    return PostRecord(memory, Attempt(**{**ATTEMPT, **attempt}), fingerprint)


def _posts() -> dict[str, list[Json]]:
    intended, registered, started, over, refused = (Kept() for _ in range(5))
    _post(intended).intend(SENDER, added={"airflow": IDENTITY})
    post = _post(registered)
    post.intend(SENDER)
    post.mark(inbox={"id": "r", "at": 1.0})
    post = _post(started)
    post.intend(SENDER, added={"airflow": IDENTITY})
    post.record_id("k-1", "/view?id=k-1")
    post.mark(unknown_since=2.0)
    post.mark(over_budget="500 tokens")
    cleared = Kept(started.record)
    _post(cleared, try_number=2, max_tries=3, clears=1)
    for number in (1, 2):
        post = _post(over, f"request {number}", try_number=number)
        post.intend(SENDER)
        post.record_id(f"k-{number}")
    post.close(finished=True)
    post = _post(refused)
    post.intend(SENDER)
    post.withdraw_if_refused(CrewBadRequest(400, "POST", "/kickoff", "no"))
    return {
        "intended": [intended.record, registered.record],
        "nothing": [refused.record],
        "over": [over.record],
        "started": [started.record, cleared.record],
    }


def _memories() -> Json:
    posts, watch = _posts(), Watch(kickoff_id="k-1", started=1.0, deadline=9.0)
    watch.recall({"kickoff_id": "k-1", "started": 1.0, "deadline": 9.0, "known": True, "polls": 3})
    kept = {**watch.learned(), "kickoff_id": "k-1", "try_number": 1}
    return {"crew_kickoff": [posts["started"][0], posts["intended"][0]], "crew_watch": kept}


def _reviews() -> dict[str, Json]:
    draft, other, until = DraftId("e-1", "t-1", "hash"), DraftId("e-1", "t-1", "other"), "2026-11-20T12:00:00+00:00"
    in_doubt, sent_back, opened = Kept(), Kept(), Kept()
    QuestionRecord(in_doubt, Attempt(**ATTEMPT)).mark_asking(draft, until, "attempt-1")
    QuestionRecord(sent_back, Attempt(**ATTEMPT)).mark_sent_back(other)
    question = QuestionRecord(opened, Attempt(**ATTEMPT))
    question.reject_draft(other)
    question.mark_asked(draft, until, {"approvals": 2}, by="attempt-1", at=datetime(2026, 11, 20, 10, tzinfo=UTC))
    question.mark_notified()
    question.mark_notified("after 1 h")
    question.add_approval({"id": "ann"})
    question.mark_looking({"output": "a draft"}, once_more=True)
    over = Kept(opened.record)
    QuestionRecord(over, Attempt(**ATTEMPT)).close()
    return {"in doubt": in_doubt.record, "nothing": sent_back.record, "open": opened.record, "over": over.record}


def _inbox() -> Json:
    task = RegisteredTask(Registration(REGISTRATION, "h1", "h2", "root-1", 1.5), "dag", "run", "resume", -1, "k-2")
    asked = InboxMessages(REGISTRATION).asking(HumanInputRequest("draft_task", "a draft", "k-2", "root-1"))
    assert task.newest
    newest_key, newest = task.newest
    run = FlowRun("crew_flow", "k-1", "dag", "run")
    question = FlowQuestion("q-1", "check", "Fine?", "Draft", ["yes", "no"], ["k-1", "f-1"], "f-1")
    address = AnswerAddress("https://crew.example.com/respond?token=t", "t", "f-1")
    return {
        task.key: task.as_dict(),
        task.messages_key: asked.with_progress("task", {"name": "draft", "agent": "Writer"}).as_dict(),
        newest_key: newest,
        run.key: run.as_dict(),
        rows.questions_key("crew_flow", "k-1"): with_question([], question),
        rows.answer_key("crew_flow", "q-1"): address.as_dict(),
        rows.answer_key("crew_flow", "q-0"): rows.USED,
    }


def _kickoffs() -> list[Json]:
    """`tests/kickoff/test_added_to_requests.py` compares them with what an operator records and sends."""
    arguments: Json = {
        "inputs": {"topic": "AI"},
        "meta": {"ticket": "T-1"},
        "webhooks": {"task": "https://example.com/task"},
    }
    request = Kickoff(**{**arguments, "webhooks": Webhooks(**arguments["webhooks"])})
    kept = Kept()
    named = fingerprint(name_of(request, IDENTITY, "crew_default"))
    # Without the times of the DAG run, which the tests' own has not.
    _post(kept, named, run_started=None, run_after=None).intend(SENDER, added={"airflow": IDENTITY})
    record = {name: value for name, value in kept.record.items() if name not in SENDER.as_dict()}
    body = endpoints.kickoff(replace(request, meta={**arguments["meta"], "airflow": IDENTITY})).body
    variable = TaskRecord(IDENTITY).part(KICKOFF_STATE, None).earlier_key
    return [{"arguments": arguments, "record": record, "body": body, "variable": variable}]


MAKERS: dict[str, Callable[[], Any]] = {
    "triggers": _triggers,
    "events": _events,
    "records": _records,
    "memories": _memories,
    "posts": _posts,
    "reviews": _reviews,
    "inbox": _inbox,
    "kickoffs": _kickoffs,
}


def write() -> None:
    """Write the samples of this version."""
    folder = HERE / __version__.partition(".dev")[0]
    folder.mkdir(exist_ok=True)
    for name, make in MAKERS.items():
        (folder / f"{name}.json").write_text(json.dumps(make(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write()
