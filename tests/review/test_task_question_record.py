"""What a review remembers of its question between tries, so that no answer is lost and nobody is asked twice."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import Any

import pytest

from airflow_crew_provider.compat.task_state import Attempt, TaskStateUnavailable
from airflow_crew_provider.review.record import MOVES, QuestionRecord, State, StoredQuestion

DRAFT, OTHER = ["e-1", "t-1", "hash"], ["e-1", "t-1", "other"]
NOON = "2026-11-20T12:00:00+00:00"
ATTEMPT = {"try_number": 1, "max_tries": 2, "retries": 2, "clears": 0}


class Memory:
    """Keeps a record as JSON, between tries; `history` is every record that was kept."""

    def __init__(self) -> None:
        self.kept, self.broken = "{}", False
        self.history: list[Any] = []

    def recall(self) -> Any:
        return json.loads(self.kept)

    def keep(self, record: Any) -> None:
        if self.broken:
            raise TaskStateUnavailable("Airflow is away")
        self.kept = json.dumps(record)
        self.history.append(record)

    def close(self, record: Any) -> None:
        self.keep(record)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def tried(memory: Any, **attempt: Any) -> QuestionRecord:
    return QuestionRecord(memory, Attempt(**{**ATTEMPT, **attempt}))


def cleared(memory: Any) -> QuestionRecord:
    return tried(memory, try_number=2, max_tries=3)


@pytest.mark.row("N27")
def test_n27_an_answer_is_kept_where_a_neighbour_was_cleared_and_this_task_is_tried_again(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.close()  # and Airflow never learned that the task has succeeded
    retry = tried(memory, try_number=2, clears=1)
    assert (retry.cleared, retry.is_open_for(DRAFT), retry.until(DRAFT)) == (False, True, NOON)


def test_before_anything_was_asked_no_question_is_open(memory: Memory) -> None:
    record = tried(memory)
    assert (record.is_open_for(DRAFT), record.until(DRAFT), record.cleared) == (False, None, False)


def test_a_question_that_is_being_asked_is_open_and_in_doubt_until_it_was_asked(memory: Memory) -> None:
    tried(memory).mark_asking(DRAFT, NOON)
    retry = tried(memory, try_number=2)
    assert (retry.is_open_for(DRAFT), retry.in_doubt, retry.until(DRAFT)) == (True, True, NOON)
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


def test_a_question_stays_open_for_its_draft_until_a_deadline_that_retries_keep(memory: Memory) -> None:
    tried(memory).mark_asked(DRAFT, NOON)
    assert timeless(memory) == {**ATTEMPT, "draft": DRAFT, "until": NOON}
    retry = tried(memory, try_number=2)
    assert (retry.is_open_for(DRAFT), retry.is_open_for(OTHER), retry.until(DRAFT)) == (True, False, NOON)
    assert retry.cleared is False


def test_a_clear_keeps_an_open_question_and_its_answer_but_not_the_deadline(memory: Memory) -> None:
    tried(memory).mark_asked(DRAFT, NOON)
    record = cleared(memory)
    assert (record.cleared, record.is_open_for(DRAFT), record.until(DRAFT)) == (True, True, None)
    record.mark_asked(DRAFT, None)
    assert record.cleared is False
    assert timeless(memory) == {
        **ATTEMPT,
        **{"try_number": 2, "max_tries": 3},
        "draft": DRAFT,
    }


def test_after_its_end_only_a_clear_asks_anew(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.close()
    assert timeless(memory) == {**ATTEMPT, "draft": DRAFT, "until": NOON, "over": True}
    assert tried(memory, try_number=2).is_open_for(DRAFT) is True
    assert cleared(memory).is_open_for(DRAFT) is False


def test_people_are_notified_once(memory: Memory) -> None:
    told: list[Any] = []
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.notify([told.append, told.append], "context")
    assert told == ["context", "context"]
    assert [each.get("notified") for each in memory.history] == [None, "begun", "done"]
    retry = tried(memory, try_number=2)
    retry.notify([told.append], "again")
    retry.mark_asked(DRAFT, NOON)
    retry.notify([told.append], "again")
    assert len(told) == 2


@pytest.mark.parametrize("by_clear", [True, False])
def test_a_new_question_and_a_clear_notify_once_more(memory: Memory, by_clear: bool) -> None:
    told: list[Any] = []
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.notify([told.append], 1)
    later = cleared(memory) if by_clear else tried(memory, try_number=2)
    later.mark_asked(DRAFT, NOON, again=not by_clear)
    later.notify([told.append], 2)
    assert told == [1, 2]


def test_a_try_that_dies_while_it_notifies_is_followed_by_one_more_attempt(memory: Memory) -> None:
    told: list[int] = []

    def kills(context: int) -> None:
        told.append(context)
        raise KeyboardInterrupt

    tried(memory).mark_asked(DRAFT, NOON)
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            tried(memory, try_number=number).notify([kills], number)
    tried(memory, try_number=3).notify([kills], 3)
    assert told == [1, 2]


def test_a_notifier_that_fails_keeps_nobody_else_from_being_told(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def fails(context: Any) -> None:
        raise ValueError(context)

    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.notify([fails, told.append], "context")
    assert told == ["context"]
    [line] = caplog.records
    assert (line.levelno, line.getMessage()) == (
        logging.WARNING,
        "A notifier failed; the question stays open",
    )
    assert line.exc_info
    assert memory.recall()["notified"] == "done"


def test_a_record_that_cannot_be_kept_does_not_take_the_question_back(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    memory.broken = True
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    assert record.is_open_for(DRAFT)
    said = "Airflow is away. The question is open; if this try is lost, the next one may ask again"
    assert caplog.messages == [said]


def test_another_draft_has_its_own_deadline_and_its_own_people_told(memory: Memory) -> None:
    """Before Airflow 3.3 the record outlives a deleted run, whose id a new run may have."""
    told: list[Any] = []
    before = tried(memory)
    before.mark_asked(OTHER, NOON)
    before.notify([told.append], "before")
    record = tried(memory)
    assert (record.until(DRAFT), record.until(OTHER)) == (None, NOON)
    assert record.since(DRAFT) > record.since(OTHER)
    record.mark_asked(DRAFT, None)
    record.notify([told.append], "now")
    assert told == ["before", "now"]


STANDS = {
    State.NOTHING: StoredQuestion(),
    State.IN_DOUBT: StoredQuestion(draft=DRAFT, doubt=True),
    State.OPEN: StoredQuestion(draft=DRAFT),
    State.OVER: StoredQuestion(draft=DRAFT, over=True),
}


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("move", MOVES)
def test_a_move_that_is_not_drawn_is_refused(move: str, before: State) -> None:
    question, drawn = STANDS[before], MOVES[move].get(before)
    assert question.state is before
    for after, new in STANDS.items():
        if after is drawn:
            assert question.moved(move, new) is new
        else:
            with pytest.raises(RuntimeError, match=f"A question that is {before} cannot be {after} by {move}"):
                question.moved(move, new)


def test_an_answer_that_airflow_brings_once_more_leaves_the_question_over(memory: Memory) -> None:
    record = tried(memory)
    record.mark_asked(DRAFT, NOON)
    record.close()
    record.reject_draft(DRAFT)
    record.add_approval({"id": "ann"})
    kept = memory.recall()
    assert (kept["over"], kept["rejected"], kept["approvals"]) == (True, [["e-1", "hash"]], [{"id": "ann"}])


def test_what_is_not_known_is_not_stored_and_what_a_later_release_stores_is_left_out() -> None:
    assert StoredQuestion().to_json() == {}
    later = {"draft": DRAFT, "since": NOON, "try_number": 1, "of_a_later_release": 1}
    assert StoredQuestion.from_json(later).to_json() == {"draft": DRAFT, "since": NOON, "try_number": 1}
