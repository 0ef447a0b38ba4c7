"""What a wait knows of the resume before it, from the XCom of the tasks upstream."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.api.answers import FIELDS, DraftId
from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.resume.record import (
    OLD_PAUSE_SHOWS,
    ResumeRecord,
    last_resume,
    lost_edit,
    resume_before,
)
from airflow_crew_provider.stored_names import NOT_SENT, RESUME_KEY
from airflow_crew_provider.task.record import AnswerState, SentAnswer
from airflow_crew_provider.wait.watch import AnsweredDraft

TOLD = {
    **{"kickoff_id": "k-1", "execution_id": "e-1", "crew_task_id": "draft_task"},
    **{"draft_sha256": "a hash", "resumed_at": 100.0, "status": "resumed"},
}


class Wait:
    """A task with two resumes, a kickoff and a task with some of a resume's fields upstream."""

    def __init__(self, in_dag: bool = True) -> None:
        self.has_dag = lambda: in_dag

    def get_flat_relatives(self, *, upstream: bool) -> list[Any]:
        fields = {"resume_2": ("review", *FIELDS), "kickoff": ("inputs",), "form": FIELDS[:-1], "resume_1": FIELDS}
        named = [SimpleNamespace(task_id=name, template_fields=each) for name, each in fields.items()]
        return named if upstream is True else []


class Pulled:
    """The XComs of a run, or the error that reading them ends in."""

    def __init__(self, found: Any) -> None:
        self.found, self.asked = found, []

    def xcom_pull(self, **asked: Any) -> Any:
        self.asked.append(asked)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def before(found: Any, kickoff_id: str = "k-1", task: Any = None) -> Any:
    found = resume_before({"ti": Pulled(found)}, task or Wait(), kickoff_id)
    return found.to_json() if found else None


def resume(told: Any) -> ResumeRecord:
    found = ResumeRecord.from_json(told)
    assert found
    return found


def test_only_resumes_upstream_are_asked() -> None:
    pulled = Pulled([TOLD])
    assert resume_before({"ti": pulled}, Wait(), "k-1") == ResumeRecord.from_json(TOLD)
    assert pulled.asked == [{"task_ids": ["resume_1", "resume_2"], "key": RESUME_KEY}]


def test_without_a_resume_upstream_nothing_is_pulled() -> None:
    pulled = Pulled([TOLD])
    assert resume_before({"ti": pulled}, Wait(in_dag=False), "k-1") is None
    assert pulled.asked == []


@pytest.mark.parametrize("found", [None, [], [None], ["k-1"], [{}], [{**TOLD, "kickoff_id": "k-2"}]])
def test_reports_on_other_executions_are_left_out(found: Any) -> None:
    assert before(found) is None


def test_the_last_resume_of_the_execution_counts() -> None:
    nothing = {**dict.fromkeys(("draft_sha256", "resumed_at", "status")), "execution_id": "", "crew_task_id": ""}
    untimed = {**nothing, "kickoff_id": "k-1"}
    later, other = {**TOLD, "resumed_at": 200.0}, {**TOLD, "kickoff_id": "k-2", "resumed_at": 300.0}
    assert before([untimed, TOLD, later, other, None]) == later
    assert before([later, TOLD, untimed]) == later
    assert before([untimed]) == untimed
    assert before([{**untimed, "resumed_at": -0.5}, untimed]) == untimed
    assert before([untimed, {**untimed, "resumed_at": 0.5}]) == {**untimed, "resumed_at": 0.5}


def test_unreadable_xcoms_end_no_wait_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert before(RuntimeError("away")) is None
    assert [record.getMessage() for record in caplog.records] == [
        "The result of the upstream resume cannot be read; an old pause may be mistaken for a new one"
    ]
    assert caplog.records[0].exc_info


def test_an_answered_draft_may_still_show_shortly_after_the_resume() -> None:
    assert resume(TOLD).answered == AnsweredDraft(DraftId("e-1", "draft_task", "a hash"), 100.0 + OLD_PAUSE_SHOWS)


@pytest.mark.parametrize("name", ["draft_sha256", "resumed_at"])
def test_a_resume_lacking_draft_or_time_explains_no_pause(name: str) -> None:
    told = {key: value for key, value in TOLD.items() if key != name}
    assert resume(told).answered is None


LEFT = {**TOLD, "status": NOT_SENT, "edited_output": "An edit."}


def seen(state: ExecutionState, task: str | None = None) -> Execution:
    return Execution(kickoff_id="k-1", state=state, raw_state=str(state), crew_task_id=task)


class Round(Wait):
    """A wait with one resume before it, and one after it."""

    def get_flat_relatives(self, *, upstream: bool) -> list[Any]:
        return [SimpleNamespace(task_id="resume_1" if upstream else "resume_2", template_fields=FIELDS)]


class Told:
    """What the resumes of the run have said."""

    def __init__(self, **by_task: Any) -> None:
        self.by_task = by_task

    def xcom_pull(self, *, task_ids: list[str], key: str) -> list[Any]:
        return [self.by_task[each] for each in task_ids if each in self.by_task]


def lost_before(ti: Any, now: Execution) -> str | None:
    """Return the message of a wait that sees this execution."""
    context = {"ti": ti}
    return lost_edit(context, Round(), now, last_resume(context, Round(), now.kickoff_id))


@pytest.mark.parametrize(
    ("now", "where"),
    [
        (seen(ExecutionState.COMPLETED), "has now completed"),
        (seen(ExecutionState.PENDING, "publish_task"), "is now waiting at task publish_task"),
    ],
)
def test_an_unapplied_edit_is_reported_if_no_next_round_comes(now: Execution, where: str) -> None:
    assert lost_before(Told(resume_1=LEFT), now) == (
        "The edited draft of task draft_task was not applied: somebody else approved the task without it, and "
        f"execution e-1 {where}. The edited text is in the XCom crew_decision of its review. The crew's text is still "
        "available from the service"
    )


@pytest.mark.parametrize(
    ("told", "now"),
    [
        ({}, seen(ExecutionState.COMPLETED)),
        ({"resume_1": {**TOLD, "status": "resumed"}}, seen(ExecutionState.COMPLETED)),
        ({"resume_1": LEFT}, seen(ExecutionState.PENDING, "draft_task")),
        ({"resume_1": LEFT, "resume_2": {**TOLD, "status": "resumed"}}, seen(ExecutionState.COMPLETED)),
    ],
    ids=["no resume", "sent", "the next round", "a cleared wait after the next round"],
)
def test_an_edit_sent_or_reviewed_again_is_not_reported_lost(told: Any, now: Execution) -> None:
    assert lost_before(Told(**told), now) is None


def test_an_unreadable_resume_record_makes_the_wait_retry() -> None:
    with pytest.raises(RuntimeError):
        last_resume({"ti": Pulled(RuntimeError("the API server is away"))}, Wait(), "k-1")


def test_a_resume_record_reads_back_with_the_answer_sent() -> None:
    said = {**TOLD, "human_feedback": "Shorter.", "decided_at": None}
    assert ResumeRecord.from_json(said).to_json() == said  # type: ignore[union-attr]


@pytest.mark.parametrize("said", [{"kickoff_id": "k-1"}, {**TOLD, "said": "of the service"}], ids=["least", "more"])
def test_a_resume_record_may_lack_fields_or_hold_any_response(said: Any) -> None:
    read = ResumeRecord.from_json(said)
    assert read is not None
    assert (read.execution_id, read.said) == (said.get("execution_id", ""), said)


def test_a_stored_answer_reads_back_and_ends_only_once() -> None:
    sending = SentAnswer("a hash", 7.0, sends_hash=True)
    kept = {"fingerprint": "f", "intended_at": 100.0, **sending.to_json()}
    assert kept == {
        **{"fingerprint": "f", "intended_at": 100.0},
        **{"draft_sha256": "a hash", "patience": 7.0, "sends_hash": True},
    }
    read = SentAnswer.from_json(kept)
    assert (read.state, read.lost(150.0), read.taken(150.0)) == (
        AnswerState.SENDING,
        {"lost_at": 150.0},
        {"resumed_at": 150.0},
    )
    unused = read.taken(150.0, unused=True)
    assert unused == {"resumed_at": 150.0, "unused": True}
    for noted, state in (
        ({"lost_at": 150.0}, AnswerState.LOST),
        ({"resumed_at": 150.0}, AnswerState.SENT),
        (unused, AnswerState.UNUSED),
    ):
        ended = SentAnswer.from_json({**kept, **noted})
        assert ended.state is state
        for move in (ended.lost, ended.taken):
            with pytest.raises(RuntimeError, match=f"An answer that is {state} cannot become"):
                move(200.0)


@pytest.mark.parametrize(
    ("kept", "until"),
    [
        ({"intended_at": 100.0, "patience": 7.0}, 100.0 + 7.0 + 7.0 + 1.0),
        ({"intended_at": 100.0, "patience": 7.0, "lost_at": 103.0}, 103.0 + 7.0 + 1.0),
        ({"intended_at": 100.0, "patience": 2.0, "lost_at": 103.0}, 103.0 + 5.0 + 1.0),
        ({"intended_at": 100.0}, 100.0 + 5.0 + 5.0 + 1.0),
    ],
    ids=["no end was noted", "lost", "the connection is more patient now", "of release 0.1"],
)
def test_a_lost_answer_may_arrive_for_another_full_service_timeout(kept: Any, until: float) -> None:
    assert SentAnswer.from_json(kept).arrives_until(5.0, 1.0) == until


REFUSED = {**TOLD, "status": NOT_SENT, "question_open": True, "message": "too long"}


def test_a_refused_answer_leaves_the_same_question_with_the_reason() -> None:
    asked = seen(ExecutionState.PENDING, "draft_task")
    assert resume(REFUSED).refusal_field(asked) == {"refusal": "too long"}
    assert resume(REFUSED).answered is None


@pytest.mark.parametrize(
    ("told", "task"),
    [
        (TOLD, "draft_task"),
        (LEFT, "draft_task"),
        ({**REFUSED, "status": "resumed"}, "draft_task"),
        (REFUSED, "another_task"),
    ],
    ids=["sent", "another draft", "sent later", "another question"],
)
def test_only_a_refused_answer_has_a_reason_to_tell(told: Any, task: str) -> None:
    assert resume(told).refusal_field(seen(ExecutionState.PENDING, task)) == {}
