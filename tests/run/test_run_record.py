"""The record of a task that starts, waits, asks and answers: its moves, what it counts, and what it stores."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.run.record import RunRecord, bound_to
from airflow_crew_provider.stored_names import RUN_STATE
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.record import MOVES, RunState, StoredRun
from airflow_crew_provider.task.store import UNOPENED
from airflow_crew_provider.wait.outcomes import CrewTryFailed
from airflow_crew_provider.wait.watch import AnsweredDraft

DRAFT, OTHER = ["e-1", "draft_task", "sha-1"], ["e-1", "draft_task", "sha-2"]
REVIEW = {"execution_id": "e-1", "crew_task_id": "draft_task", "is_approve": True, "edited_output": "My own text."}
SAID = {"kickoff_id": "e-1", "status": "resumed", "message": None}


class Memory:
    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def recall(self) -> dict[str, Any]:
        return self.kept

    def change(self, record: dict[str, Any], failed: Any) -> None:
        self.kept = record

    def part(self, name: str, plain: Any) -> Memory:
        return self if name == RUN_STATE else Memory()


@pytest.fixture
def memory() -> Memory:
    return Memory()


def stored(memory: Memory, **attempt: Any) -> RunRecord:
    return RunRecord(memory, Attempt(**attempt))


def working(memory: Memory, now: float = 100.0) -> RunRecord:
    record = stored(memory)
    record.begin("e-1", None, now=now)
    return record


def asking(memory: Memory) -> RunRecord:
    record = working(memory)
    record.ask(DRAFT, now=110.0)
    return record


def answered(memory: Memory) -> RunRecord:
    record = asking(memory)
    record.answer(REVIEW)
    return record


def over(memory: Memory) -> RunRecord:
    record = working(memory)
    record.finish()
    return record


STANDS = {RunState.NOTHING: stored, RunState.WORKING: working, RunState.ASKING: asking}
STANDS |= {RunState.ANSWERED: answered, RunState.OVER: over}
DO = {
    "begin": lambda record: record.begin("e-2", None, now=200.0),
    "again": lambda record: record.begin("e-1", None, now=200.0),
    "ask": lambda record: record.ask(DRAFT, now=200.0),
    "answer": lambda record: record.answer(REVIEW),
    "send": lambda record: record.send(SAID, now=200.0),
    "finish": lambda record: record.finish(),
}
NEVER = {("again", RunState.NOTHING)}  # another execution's


@pytest.mark.parametrize(("move", "state"), [each for each in itertools.product(DO, STANDS) if each not in NEVER])
def test_a_move_leads_where_the_table_says_or_is_refused(memory: Memory, move: str, state: RunState) -> None:
    record = STANDS[state](memory)
    assert record.kept.state is state
    before, then = dict(memory.kept), MOVES[RunState][move].get(state)
    if then is None:
        with pytest.raises((RuntimeError, AssertionError, ValueError)):
            DO[move](record)
        assert memory.kept == before
        return
    DO[move](record)
    assert stored(memory).kept.state in then


def test_the_time_of_people_is_not_the_crews(memory: Memory) -> None:
    record = working(memory)
    assert record.deadline(60.0) == 160.0
    record.ask(DRAFT, now=110.0)
    assert record.deadline(60.0) is None
    record.answer(REVIEW)
    record.send(SAID, now=10_000.0)
    assert record.deadline(60.0) == 10_050.0
    assert record.deadline(None) is None
    again = stored(memory)
    again.begin("e-1", None, now=20_000.0)  # a later try has all the time again
    assert again.deadline(60.0) == 20_060.0


def test_a_question_keeps_its_number_until_it_has_an_answer(memory: Memory) -> None:
    record = asking(memory)
    record.begin("e-1", None, now=300.0)
    assert (record.number_of(DRAFT), record.number_of(OTHER)) == (1, 2)
    record.ask(DRAFT, now=310.0)
    record.answer(REVIEW)
    record.send(SAID, now=320.0)
    assert record.number_of(DRAFT) == 2  # equal, but another question
    record.ask(DRAFT, now=330.0)
    assert record.kept.number == 2


def test_the_decisions_have_numbers_and_no_drafts_and_say_what_became_of_them(memory: Memory) -> None:
    record = answered(memory)
    assert record.kept.review == REVIEW
    [decision] = record.kept.decisions
    assert decision == {
        "execution_id": "e-1",
        "crew_task_id": "draft_task",
        "is_approve": True,
        "edited": True,
        "round": 1,
    }
    record.send(SAID, now=120.0)
    assert record.kept.decisions == [{**decision, "taken": True, "service": SAID}]
    record.ask(OTHER, now=130.0)
    record.answer({**REVIEW, "output": "a draft"})
    record.send(None, now=140.0)
    assert [(each["round"], each["taken"], each["service"]) for each in record.kept.decisions] == [
        (1, True, SAID),
        (2, False, None),
    ]
    assert "output" not in record.kept.decisions[1]


def test_an_answer_that_was_not_taken_leaves_the_old_pause_and_the_id(memory: Memory) -> None:
    record = answered(memory)
    pause = AnsweredDraft(DraftId(*DRAFT), 170.0)
    record.send(SAID, now=120.0, kickoff_id="e-2", inbox={"registration": "r"}, answered=pause)
    assert (stored(memory).answered, record.kept.kickoff_id, record.kept.inbox) == (
        pause,
        "e-2",
        {"registration": "r"},
    )
    record.ask(OTHER, now=130.0)
    record.answer(REVIEW)
    record.send(None, now=140.0, kickoff_id="e-3")
    assert (record.answered, record.kept.kickoff_id) == (pause, "e-2")


@pytest.mark.row("A43")
def test_another_execution_begins_with_the_decisions_and_the_number_of_forms(memory: Memory) -> None:
    record = answered(memory)
    decisions = record.kept.decisions
    record.begin("e-2", {"registration": "r"}, now=500.0)
    attempt, inbox = Attempt().as_dict(), {"registration": "r"}
    assert record.kept == StoredRun("e-2", "e-2", attempt, inbox, since=500.0, decisions=decisions, earlier=1)
    record.ask(DRAFT, now=510.0)
    assert (record.kept.number, record.kept.form) == (1, 2)


@pytest.mark.row("A43")
def test_the_decisions_of_a_deleted_run_are_not_this_runs(memory: Memory) -> None:
    first = stored(memory, run_started=1.0, run_after=1.0, try_number=2)
    first.begin("e-1", None, now=100.0)
    first.ask(DRAFT, now=110.0)
    first.answer(REVIEW)
    another = stored(memory, run_started=9.0, run_after=9.0)
    another.begin("e-2", None, now=500.0)
    assert another.kept.decisions == []


@pytest.mark.row("A47")
def test_texts_that_cannot_be_opened_end_a_retry_and_no_clear(memory: Memory) -> None:
    answered(memory)
    texts = ("review", "decisions")
    memory.kept = {name: value for name, value in memory.kept.items() if name not in texts} | {UNOPENED: "no key"}
    again = stored(memory)
    assert (again.kept.kickoff_id, again.kept.state) == ("e-1", RunState.ANSWERED)
    with pytest.raises(CrewTryFailed, match=r"no key\. A retry of this task reattaches"):
        again.begin("e-1", None, now=500.0)
    again.begin("e-2", None, now=500.0)
    again.ask(DRAFT, now=510.0)


def test_what_a_later_release_stores_is_left_out() -> None:
    assert StoredRun.from_json({"execution_id": "e-1", "mood": "fine"}) == StoredRun("e-1")


ANN = {"id": "7", "name": "Ann"}
ANSWER = {"chosen_options": ["approve"], "responded_by_user": ANN}


@pytest.mark.parametrize("fields", [{"question_number": 1}, {}, None, {"human_feedback": ""}, {"question_number": "2"}])
def test_an_answer_must_name_its_question(fields: Any) -> None:
    event = bound_to(2, {**ANSWER, "params_input": fields})
    assert event["error_type"] == "validation"
    assert "this is question 2" in event["error"]


@pytest.mark.parametrize(
    "event",
    [
        {**ANSWER, "params_input": {"question_number": 2}},
        {"chosen_options": ["approve"], "responded_by_user": None, "params_input": {}},  # the deadline
        {"error": "too late", "error_type": "timeout"},
        {**ANSWER, "params_input": {}, "error": "unreadable", "error_type": "validation"},
    ],
)
def test_other_events_stay_as_they_are(event: dict[str, Any]) -> None:
    assert bound_to(2, event) is event


def test_a_deadline_of_an_older_form_does_not_decide() -> None:
    late = {"chosen_options": ["approve"], "responded_by_user": None, "params_input": {"question_number": 1}}
    assert bound_to(2, late)["error_type"] == "validation"
