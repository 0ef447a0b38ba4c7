"""The record of a task that starts, waits, asks and answers: its moves, what it counts, and what it stores."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.run.record import RunRecord, bound_to
from airflow_crew_provider.stored_names import OTHER_QUESTION, RESUME_STATE, REVIEW_STATE, RUN_STATE
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.record import MOVES, PLAIN_OF_RUN, UNOPENED, RunState, StoredRun
from airflow_crew_provider.task.store import TaskStateUnavailable
from airflow_crew_provider.wait.outcomes import CrewTryFailed
from airflow_crew_provider.wait.watch import AnsweredDraft

DRAFT, OTHER = ["e-1", "draft_task", "sha-1"], ["e-1", "draft_task", "sha-2"]
REVIEW = {"execution_id": "e-1", "crew_task_id": "draft_task", "is_approve": True, "edited_output": "My own text."}
SAID = {"kickoff_id": "e-1", "status": "resumed", "message": None}


class Memory:
    """A part of a record with its other parts; a full one cannot be stored."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.plain: Any = None
        self.others: dict[str, Memory] = {}
        self.is_full = False

    def recall(self) -> dict[str, Any]:
        return self.kept

    def change(self, record: dict[str, Any], failed: Any) -> None:
        if self.is_full:
            failed(TaskStateUnavailable("full"))
        self.kept = record

    def part(self, name: str, plain: Any) -> Memory:
        part = self if name == RUN_STATE else self.others.setdefault(name, Memory())
        part.plain = plain
        return part


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


def test_decisions_are_numbered_with_their_fate_and_without_drafts(memory: Memory) -> None:
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
    record.send(None, now=140.0, refusal="too short")
    assert [(each["round"], each["taken"], each["service"]) for each in record.kept.decisions] == [
        (1, True, SAID),
        (2, False, None),
    ]
    assert [each.get("refusal") for each in record.kept.decisions] == [None, "too short"]
    assert "output" not in record.kept.decisions[1]


def test_an_untaken_answer_leaves_the_old_pause_and_id(memory: Memory) -> None:
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


def test_a_decision_without_an_edit_names_none(memory: Memory) -> None:
    record = asking(memory)
    record.answer({"execution_id": "e-1", "is_approve": True, "output": "a draft", "rejected_before": []})
    assert record.kept.decisions == [{"execution_id": "e-1", "is_approve": True, "round": 1}]


def test_a_sent_answer_is_kept_no_longer(memory: Memory) -> None:
    record = answered(memory)
    record.send(SAID, now=120.0)
    assert stored(memory).kept.review is None


def test_a_later_try_owns_the_execution_that_it_continues(memory: Memory) -> None:
    over(memory)
    again = stored(memory, try_number=2)
    again.begin("e-1", None, now=300.0)
    assert again.kept == StoredRun("e-1", "e-1", Attempt(2).as_dict(), since=300.0)


REJECTED = {"rejected": [["e-1", "sha-1"]]}
QUESTION, ANSWER_SENT = {"draft": DRAFT, **REJECTED}, {"fingerprint": "f", "resumed_at": 1.0}


def with_last_question(memory: Memory) -> RunRecord:
    record = answered(memory)
    record.send(SAID, now=120.0)
    memory.part(REVIEW_STATE, None).kept = QUESTION
    memory.part(RESUME_STATE, None).kept = ANSWER_SENT
    return record


@pytest.mark.parametrize("move", ["begin", "ask"])
def test_a_next_question_forgets_the_last_one_but_no_rejection(memory: Memory, move: str) -> None:
    DO[move](with_last_question(memory))
    assert {name: part.kept for name, part in memory.others.items()} == {REVIEW_STATE: REJECTED, RESUME_STATE: {}}


def test_a_question_asked_again_forgets_nothing(memory: Memory) -> None:
    record = asking(memory)
    memory.part(RESUME_STATE, None).kept = ANSWER_SENT
    record.begin("e-1", None, now=200.0)
    record.ask(DRAFT, now=210.0)
    assert memory.others[RESUME_STATE].kept == ANSWER_SENT


def test_only_ids_times_and_numbers_are_plain(memory: Memory) -> None:
    with_last_question(memory).ask(OTHER, now=130.0)
    assert memory.plain == PLAIN_OF_RUN
    assert memory.others[RESUME_STATE].plain is None


UNSENT = "A retry of this task compares again"
UNSTORED: list[tuple[RunState, Any, str]] = [
    (RunState.NOTHING, DO["begin"], "A retry of this task reattaches to it"),
    (RunState.WORKING, DO["again"], "A retry of this task reattaches to it"),
    (RunState.WORKING, DO["ask"], "Nobody was asked; a retry of this task will ask"),
    (RunState.ASKING, DO["answer"], "The answer is kept; a retry of this task uses it"),
    (RunState.ANSWERED, DO["send"], "The answer was sent exactly once"),
    (RunState.ANSWERED, lambda record: record.send(None, now=200.0), UNSENT),
]


@pytest.mark.parametrize(("state", "move", "follows"), UNSTORED)
def test_a_move_that_is_not_stored_says_what_follows(memory: Memory, state: RunState, move: Any, follows: str) -> None:
    record = STANDS[state](memory)
    before, memory.is_full = record.kept, True
    with pytest.raises(CrewTryFailed) as failure:
        move(record)
    assert str(failure.value) == f"full. {follows}"
    assert record.kept is before


def test_an_end_that_is_not_stored_fails_nothing(memory: Memory) -> None:
    record = working(memory)
    memory.is_full = True
    record.finish()
    assert record.kept.state is RunState.OVER


def test_nobody_is_asked_with_the_last_answer_on_record(memory: Memory) -> None:
    record = working(memory)
    memory.part(RESUME_STATE, None).is_full = True
    with pytest.raises(CrewTryFailed) as failure:
        record.ask(DRAFT, now=110.0)
    assert str(failure.value) == "full. Nobody was asked; a retry of this task will ask"
    assert record.kept.state is RunState.WORKING


@pytest.mark.row("A43")
def test_another_execution_begins_with_earlier_decisions_and_form_count(memory: Memory) -> None:
    record = answered(memory)
    decisions = record.kept.decisions
    record.begin("e-2", {"registration": "r"}, now=500.0)
    attempt, inbox = Attempt().as_dict(), {"registration": "r"}
    assert record.kept == StoredRun("e-2", "e-2", attempt, inbox, since=500.0, decisions=decisions, earlier=1)
    record.ask(DRAFT, now=510.0)
    assert (record.kept.number, record.kept.form) == (1, 2)


@pytest.mark.row("A43")
@pytest.mark.parametrize(("before", "number", "earlier"), [(answered, 1, 0), (asking, 0, 1), (working, 0, 0)])
def test_a_continuing_execution_counts_the_answered_questions_as_its_own(
    memory: Memory, before: Any, number: int, earlier: int
) -> None:
    before(memory).begin("e-2", None, now=500.0, continues=True)
    record = stored(memory)
    assert (record.kept.number, record.kept.earlier, record.kept.continues) == (number, earlier, ["e-1"])
    assert [each["execution_id"] for each in record.decisions_on_this] == ["e-1"] * number
    record.begin("e-3", None, now=600.0, continues=True)
    assert (record.kept.number, record.kept.continues) == (number, ["e-1", "e-2"])
    record.begin("e-3", None, now=700.0, continues=True)  # in a later try
    assert record.kept.continues == ["e-1", "e-2"]
    record.begin("e-4", None, now=800.0)
    assert (record.kept.number, record.kept.form, record.kept.continues) == (0, number + earlier, [])
    assert record.decisions_on_this == []


def test_an_execution_before_the_first_on_record_is_not_counted(memory: Memory) -> None:
    record = stored(memory)
    record.begin("e-2", None, now=500.0, continues=True)  # e-1 failed before its id was on record here
    assert record.kept == StoredRun("e-2", "e-2", Attempt().as_dict(), since=500.0)


@pytest.mark.parametrize("is_another", [False, True], ids=["this run", "a deleted run"])
def test_only_this_runs_facts_about_drafts_outlive_an_execution(memory: Memory, is_another: bool) -> None:
    first = stored(memory, run_started=1.0, run_after=1.0, try_number=2)
    first.begin("e-1", None, now=100.0)
    known = {"rejected": [["e-1", "sha-1"]], "sent_back": DRAFT}
    memory.part(REVIEW_STATE, None).kept = known
    run = {"run_started": 9.0, "run_after": 9.0} if is_another else {"run_started": 1.0, "run_after": 1.0}
    stored(memory, **run, try_number=3).begin("e-2", None, now=500.0)
    assert memory.others[REVIEW_STATE].kept == ({} if is_another else known)


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
def test_undecryptable_texts_fail_a_retry_but_not_a_clear(memory: Memory) -> None:
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


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"question_number": 1}, "it answers question 1"),
        ({"question_number": "2"}, "it answers question 2"),
        ({}, "it has no question_number"),
        (None, "it has no question_number"),
        ({"human_feedback": ""}, "it has no question_number"),
        (["question_number"], "it has no question_number"),
    ],
)
def test_an_answer_must_name_its_question(fields: Any, said: str) -> None:
    event = {**ANSWER, "params_input": fields}
    assert bound_to(2, event) == {
        **event,
        "error": f"{said}, but this is question 2",
        "error_type": "validation",
        OTHER_QUESTION: said.startswith("it answers"),
    }


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
