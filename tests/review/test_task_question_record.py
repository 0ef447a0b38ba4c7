"""What a review remembers of its question between tries, so that no answer is lost and nobody is asked twice."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_stand_ins import Store

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.review.question import call
from airflow_crew_provider.review.record import QuestionRecord
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.record import UNOPENED, StoredQuestion
from airflow_crew_provider.task.store import TaskStateUnavailable, record_of
from airflow_crew_provider.wait.outcomes import CrewTryFailed

DRAFT, OTHER = DraftId("e-1", "t-1", "hash"), DraftId("e-1", "t-1", "other")
NOON = "2026-11-20T12:00:00+00:00"
ATTEMPT = {"try_number": 1, "max_tries": 2, "retries": 2, "clears": 0}


class Memory:
    """Keeps a record as JSON, between tries; `history` is every record that was kept."""

    def __init__(self) -> None:
        self.kept, self.broken = "{}", False
        self.history: list[Any] = []

    def recall(self) -> Any:
        return json.loads(self.kept)

    def change(self, record: Any, failed: Any) -> None:
        if self.broken:
            failed(TaskStateUnavailable("Airflow is away"))
            return
        self.kept = json.dumps(record)
        self.history.append(record)


def notified(record: QuestionRecord, notifiers: list[Any], context: Any) -> None:
    if record.begin_to_notify():
        call(notifiers, context)
        record.mark_notified()


def step_told(record: QuestionRecord, step: str, notifiers: list[Any], context: Any) -> bool:
    is_due = record.begin_to_notify(step)
    if is_due:
        call(notifiers, context)
        record.mark_notified(step)
    return is_due


@pytest.fixture
def memory() -> Memory:
    return Memory()


def tried(memory: Any, **attempt: Any) -> QuestionRecord:
    return QuestionRecord(memory, Attempt(**{**ATTEMPT, **attempt}))


def cleared(memory: Any) -> QuestionRecord:
    return tried(memory, try_number=2, max_tries=3)


@pytest.mark.row("N27")
def test_clearing_a_neighbour_and_retrying_this_task_keep_the_answer(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.close()  # and Airflow never learned that the task has succeeded
    retry = tried(memory, try_number=2, clears=1)
    assert (retry.cleared, retry.is_open_for(DRAFT), retry.about(DRAFT).until) == (False, True, NOON)


def test_before_anything_was_asked_no_question_is_open(memory: Memory) -> None:
    record = tried(memory)
    assert (record.is_open_for(DRAFT), record.about(DRAFT).until, record.cleared) == (False, None, False)


def test_while_being_asked_a_question_is_open_and_in_doubt(memory: Memory) -> None:
    tried(memory).mark_asking(DRAFT, NOON)
    retry = tried(memory, try_number=2)
    assert (retry.is_open_for(DRAFT), retry.in_doubt, retry.about(DRAFT).until) == (True, True, NOON)
    retry.mark_asked(DRAFT, NOON, doubt=True)
    assert tried(memory, try_number=3).in_doubt is True
    retry.mark_asked(DRAFT, NOON)
    assert tried(memory, try_number=3).in_doubt is False


@pytest.mark.parametrize("after", [{"try_number": 2}, {"try_number": 1}], ids=["later try", "older question"])
def test_only_a_first_try_without_an_older_question_leaves_doubt(memory: Memory, after: Any) -> None:
    if after["try_number"] == 1:
        tried(memory).mark_asked(OTHER, NOON)
    tried(memory, **after).mark_asking(DRAFT, NOON)
    assert tried(memory, try_number=3).in_doubt is False


def test_a_question_with_an_answer_is_no_longer_in_doubt(memory: Memory) -> None:
    tried(memory).mark_asking(DRAFT, NOON)
    answered = tried(memory, try_number=2)
    answered.mark_asked(DRAFT, NOON, doubt=True)
    answered.close()  # and Airflow never learned that the task has succeeded
    retry = tried(memory, try_number=3)
    assert (retry.is_open_for(DRAFT), retry.in_doubt) == (True, False)
    retry.mark_asked(DRAFT, NOON)


def timeless(memory: Memory) -> Any:
    """Return the record without the time since when the question is open."""
    record = memory.recall()
    assert datetime.fromisoformat(record.pop("since")).tzinfo
    return record


def test_retries_keep_an_open_questions_draft_and_deadline(memory: Memory) -> None:
    tried(memory).mark_asked(DRAFT, NOON)
    assert timeless(memory) == {**ATTEMPT, "draft": list(DRAFT), "until": NOON}
    retry = tried(memory, try_number=2)
    assert (retry.is_open_for(DRAFT), retry.is_open_for(OTHER), retry.about(DRAFT).until) == (True, False, NOON)
    assert retry.cleared is False


def test_a_clear_keeps_an_open_question_but_not_its_deadline(memory: Memory) -> None:
    tried(memory).mark_asked(DRAFT, NOON)
    record = cleared(memory)
    assert (record.cleared, record.is_open_for(DRAFT), record.about(DRAFT).until) == (True, True, None)
    record.mark_asked(DRAFT, None)
    assert record.cleared is False
    assert timeless(memory) == {
        **ATTEMPT,
        **{"try_number": 2, "max_tries": 3},
        "draft": list(DRAFT),
    }


def test_after_its_end_only_a_clear_asks_anew(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.close()
    assert timeless(memory) == {**ATTEMPT, "draft": list(DRAFT), "until": NOON, "over": True}
    assert tried(memory, try_number=2).is_open_for(DRAFT) is True
    assert cleared(memory).is_open_for(DRAFT) is False


def test_people_are_notified_once(memory: Memory) -> None:
    told: list[Any] = []
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    notified(record, [told.append, told.append], "context")
    assert told == ["context", "context"]
    assert [each.get("notified") for each in memory.history] == [None, "begun", "done"]
    retry = tried(memory, try_number=2)
    notified(retry, [told.append], "again")
    retry.mark_asked(DRAFT, NOON)
    notified(retry, [told.append], "again")
    assert len(told) == 2


def killing(told: list[int]) -> Callable[[int], None]:
    """Return a notifier that is told and ends its try."""

    def kills(context: int) -> None:
        told.append(context)
        raise KeyboardInterrupt

    return kills


@pytest.mark.parametrize("by_clear", [True, False])
def test_a_new_question_and_a_clear_notify_once_more(memory: Memory, by_clear: bool) -> None:
    told: list[Any] = []
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    notified(record, [told.append], 1)
    later = cleared(memory) if by_clear else tried(memory, try_number=2)
    later.mark_asked(DRAFT, NOON, again=not by_clear)
    notified(later, [told.append], 2)
    assert told == [1, 2]


def test_a_try_dying_while_notifying_gets_one_more_attempt(memory: Memory) -> None:
    told: list[int] = []
    tried(memory).mark_asked(DRAFT, NOON)
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            notified(tried(memory, try_number=number), [killing(told)], number)
    notified(tried(memory, try_number=3), [killing(told)], 3)
    assert told == [1, 2]


def test_a_notifier_that_fails_keeps_nobody_else_from_being_told(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def fails(context: Any) -> None:
        raise ValueError(context)

    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    notified(record, [fails, told.append], "context")
    assert told == ["context"]
    [line] = caplog.records
    assert (line.levelno, line.getMessage()) == (
        logging.WARNING,
        "A notifier failed; the question stays open",
    )
    assert line.exc_info
    assert memory.recall()["notified"] == "done"


def test_an_unwritable_record_does_not_withdraw_the_question(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    memory.broken = True
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    assert record.is_open_for(DRAFT)
    said = "Airflow is away. The question is open; if this try is lost, the next one may ask again"
    assert caplog.messages == [said]


def test_another_draft_has_its_own_deadline_and_notifications(memory: Memory) -> None:
    """Before Airflow 3.3 the record outlives a deleted run, whose id a new run may have."""
    told: list[Any] = []
    before = tried(memory)
    before.mark_asked(OTHER, NOON)
    notified(before, [told.append], "before")
    record = tried(memory)
    assert (record.about(DRAFT).until, record.about(OTHER).until) == (None, NOON)
    assert record.since(DRAFT) > record.since(OTHER)
    record.mark_asked(DRAFT, None)
    notified(record, [told.append], "now")
    assert told == ["before", "now"]


def test_a_repeated_answer_from_airflow_leaves_the_question_closed(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.close()
    record.reject_draft(DRAFT)
    record.add_approval({"id": "ann"})
    kept = memory.recall()
    assert (kept["over"], kept["rejected"], kept["approvals"]) == (True, [["e-1", "hash"]], [{"id": "ann"}])


def test_unset_fields_are_not_stored_and_later_releases_fields_ignored() -> None:
    assert StoredQuestion().to_json() == {}
    later = {"draft": list(DRAFT), "since": NOON, "try_number": 1, "of_a_later_release": 1}
    assert StoredQuestion.from_json(later).to_json() == {"draft": list(DRAFT), "since": NOON, "try_number": 1}


def test_a_draft_an_early_release_marked_rejected_stays_rejected() -> None:
    kept = StoredQuestion.from_json({"draft": list(DRAFT), "rejected": True})
    assert kept.rejected == [("e-1", "hash")]


@pytest.mark.parametrize(
    ("step", "what_now"),
    [
        (lambda record: record.mark_asking(DRAFT, NOON), "Nobody was asked; a retry of this task will ask"),
        (lambda record: record.forget(), "Nobody was asked; a retry of this task will ask"),
        (lambda record: record.add_approval({}), "The approval is kept; a retry of this task uses it"),
        (lambda record: record.reject_draft(DRAFT), "The rejection is kept; a retry of this task uses it"),
        (lambda record: record.mark_sent_back(DRAFT), "The draft was not sent back; a retry of this task will do so"),
        (lambda record: record.close(), "The answer is kept; a retry of this task uses it"),
    ],
    ids=["asking", "forget", "approval", "rejection", "sent back", "close"],
)
def test_an_essential_step_that_cannot_be_recorded_fails_the_try(
    memory: Memory, step: Callable[[QuestionRecord], Any], what_now: str
) -> None:
    record = tried(memory)
    memory.broken = True
    with pytest.raises(CrewTryFailed) as failure:
        step(record)
    assert str(failure.value) == f"Airflow is away. {what_now}"


# --- a DAG run that was deleted and created again under its id ---


@pytest.mark.parametrize("run_started", [5.0, 9.0], ids=["the same try again", "another run"])
def test_a_try_keeps_its_question_and_another_run_forgets_it(memory: Memory, run_started: float) -> None:
    tried(memory, run_started=5.0).mark_asked(DRAFT, NOON)
    kept = memory.kept
    record = tried(memory, run_started=run_started)
    record.begin_try()
    is_forgotten = run_started != 5.0
    assert (record.is_about(DRAFT), record.cleared) == (not is_forgotten, False)
    assert memory.kept == ("{}" if is_forgotten else kept)


def test_nobody_is_asked_while_another_runs_question_stays(memory: Memory) -> None:
    tried(memory, run_started=5.0).mark_asked(DRAFT, NOON)
    record = tried(memory, run_started=9.0)
    memory.broken = True
    with pytest.raises(CrewTryFailed) as failure:
        record.begin_try()
    assert str(failure.value) == "Airflow is away. Nobody was asked; a retry of this task will ask"


@pytest.mark.parametrize(
    ("after", "is_needed"),
    [
        ({"try_number": 2}, True),
        ({"try_number": 1}, True),
        ({"try_number": 2, "max_tries": 3}, False),
        ({"run_started": 9.0}, False),
    ],
    ids=["retry", "the same", "clear", "another run"],
)
def test_texts_that_cannot_be_opened_matter_until_a_clear(memory: Memory, after: Any, is_needed: bool) -> None:
    tried(memory, run_started=5.0).mark_asked(DRAFT, NOON)
    memory.kept = json.dumps({**memory.recall(), UNOPENED: "no key"})
    if is_needed:
        with pytest.raises(TaskStateUnavailable, match=r"^no key$"):
            tried(memory, **{"run_started": 5.0, **after})
    else:
        assert tried(memory, **{"run_started": 5.0, **after}).is_about(DRAFT)


def test_a_retry_that_looks_like_a_clear_is_logged(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    tried(memory).mark_asked(DRAFT, NOON)
    tried(memory, try_number=2, retries=1).begin_try()
    assert [line.partition(",")[0] for line in caplog.messages] == ["The task's retries were edited from 2 to 1"]


# --- the form: its terms and its owner ---


TERMS = {"words": ["approve", "revise"]}


def test_a_forms_terms_hold_until_a_clear_and_stay_known(memory: Memory) -> None:
    tried(memory).mark_asked(DRAFT, NOON, TERMS)
    retry = tried(memory, try_number=2)
    assert (retry.about(DRAFT).terms, retry.about(OTHER).terms, retry.cleared) == (TERMS, None, False)
    after = cleared(memory)
    assert (after.about(DRAFT).terms, after.kept.terms, after.cleared) == (None, TERMS, True)
    assert (after.is_about(DRAFT), after.is_about(OTHER)) == (True, False)


def test_an_attempt_owning_its_form_leaves_doubt_in_later_tries(memory: Memory) -> None:
    tried(memory).mark_asked(DRAFT, NOON, by="attempt-1")
    record = cleared(memory)
    record.mark_asking(DRAFT, NOON, by="attempt-2")
    assert (record.cleared, record.in_doubt, record.kept.asked_by, record.about(DRAFT).until) == (
        False,
        True,
        "attempt-2",
        NOON,
    )
    retry = tried(memory, try_number=3, max_tries=3)
    assert (retry.in_doubt, retry.kept.asked_by) == (True, "attempt-2")


def test_an_attempt_asking_again_is_not_in_doubt(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON, by="attempt-1")
    record.mark_asking(DRAFT, NOON, by="attempt-1")
    assert (record.in_doubt, len(memory.history)) == (False, 1)


def test_a_look_for_an_answer_keeps_when_and_who_asked(memory: Memory) -> None:
    at = datetime(2026, 11, 20, 11, tzinfo=UTC)
    tried(memory).mark_asked(DRAFT, NOON, by="attempt-1", at=at)
    tried(memory, try_number=2).mark_asked(DRAFT, NOON)
    retry = tried(memory, try_number=3)
    assert (retry.asked_at, retry.kept.asked_by) == (at, "attempt-1")
    retry.mark_asked(DRAFT, NOON, by="attempt-3", at=at + timedelta(hours=1))
    assert (retry.asked_at, retry.kept.asked_by) == (at + timedelta(hours=1), "attempt-3")
    retry.mark_asked(OTHER, NOON)
    assert retry.asked_at is None


# --- a look for an answer that was given meanwhile ---


def test_what_was_shown_is_kept_while_looking_for_an_answer(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.mark_looking({"output": "Draft 1."})
    retry = tried(memory, try_number=2)
    assert (retry.kept.shown, retry.kept.once_more) == ({"output": "Draft 1."}, False)
    retry.close()
    assert "shown" not in memory.recall()


def test_a_second_look_stays_second_until_the_question_is_asked(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.mark_looking({}, once_more=True)
    record.mark_looking({})
    assert tried(memory, try_number=2).kept.once_more is True
    record.mark_asked(DRAFT, NOON)
    assert tried(memory, try_number=2).kept.once_more is False


@pytest.mark.parametrize(
    ("draft", "minutes", "is_later"),
    [(DRAFT, -1, True), (DRAFT, 0, False), (DRAFT, 1, False), (DRAFT, None, False), (OTHER, -1, False)],
    ids=["before", "at once", "after", "unknown", "another draft"],
)
def test_an_answer_from_before_the_question_is_told_apart(
    memory: Memory, draft: Any, minutes: int | None, is_later: bool
) -> None:
    memory.kept = json.dumps({**ATTEMPT, "draft": list(DRAFT), "since": NOON})
    answered = None if minutes is None else datetime.fromisoformat(NOON) + timedelta(minutes=minutes)
    assert tried(memory).began_after(draft, answered) is is_later


# --- the steps of an escalation ---


def test_people_of_each_step_are_told_once(memory: Memory) -> None:
    told: list[Any] = []
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    assert step_told(record, "one", [told.append, told.append], 1) is True
    assert step_told(record, "two", [told.append], 2) is True
    assert [each.get("told") for each in memory.history] == [
        None,
        {"one": "begun"},
        {"one": "done"},
        {"one": "done", "two": "begun"},
        {"one": "done", "two": "done"},
    ]
    for step in ("one", "two"):
        assert step_told(tried(memory, try_number=2), step, [told.append], 3) is False
    assert told == [1, 1, 2]


def test_a_try_dying_in_a_step_gets_one_more_attempt(memory: Memory) -> None:
    told: list[int] = []
    tried(memory).mark_asked(DRAFT, NOON)
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            step_told(tried(memory, try_number=number), "one", [killing(told)], number)
    assert step_told(tried(memory, try_number=3), "one", [killing(told)], 3) is False
    assert told == [1, 2]


# --- facts about drafts, which outlive their question ---


def test_a_later_question_keeps_earlier_rejections_and_sent_back_drafts(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.reject_draft(DRAFT)
    record.mark_sent_back(OTHER)
    assert memory.recall() == {**ATTEMPT, "rejected": [["e-1", "hash"]], "sent_back": list(OTHER)}
    record.mark_asked(["e-1", "t-1", "third"], NOON)
    after = cleared(memory)
    assert (after.kept.rejected, after.kept.sent_back) == ([("e-1", "hash")], OTHER)


def test_a_forgotten_question_leaves_draft_facts_but_no_attempt(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.reject_draft(DRAFT)
    record.forget()
    assert memory.recall() == {"rejected": [["e-1", "hash"]]}
    assert record.is_about(DRAFT) is False


# --- where it is kept ---


def test_the_record_belongs_to_the_running_task_and_its_try(context: Any, a_memory: Any) -> None:
    context["ti"].try_number = 2
    stored, attempt = record_of(context), Attempt.of(context, SimpleNamespace(retries=3))
    QuestionRecord.of(stored, attempt).mark_asked(DRAFT, NOON)
    assert (a_memory.kept, QuestionRecord.of(stored, attempt).is_about(DRAFT)) == ({}, True)
    stored.save()
    (record,) = (json.loads(value) for value in a_memory.kept.values())
    kept = record["parts"]["crew_review"]
    assert (kept["draft"], kept["try_number"], kept["retries"]) == (list(DRAFT), 2, 3)
    assert QuestionRecord.of(record_of(context), attempt).is_about(DRAFT) is True


def test_a_record_that_cannot_be_read_fails_the_try(context: Any, a_state_store: None) -> None:
    class Broken(Store):
        def get(self, key: str, default: Any = None) -> Any:
            raise RuntimeError("away")

    with pytest.raises(CrewTryFailed) as failure:
        QuestionRecord.of(record_of({**context, "task_state_store": Broken()}), Attempt())
    assert str(failure.value) == (
        "The stored state of this task could not be read (RuntimeError: away). Nobody was asked; any answer is kept"
    )
