"""A person's answer and its draft: what is read as one, and the verdict on each state of the execution."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.serialization.helpers import serialize_template_field

from airflow_crew_provider.api.answers import DraftId, ReviewAnswer, hash_of
from airflow_crew_provider.api.values import record_of
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Execution, ExecutionState, output_sha256
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.resume.draft_check import Verdict, judge
from airflow_crew_provider.wait.watch import AnsweredDraft

IDS = {"execution_id": "e-1", "crew_task_id": "draft_task"}
HASH = output_sha256("the draft")
DRAFT = DraftId("e-1", "draft_task", HASH)


def execution(state: ExecutionState = ExecutionState.PENDING, **more: Any) -> Execution:
    return Execution(kickoff_id="e-1", state=state, raw_state=str(state), **more)


WAITS = execution(crew_task_id="draft_task", output="the draft")
NEW_DRAFT = execution(crew_task_id="draft_task", output="the second draft")
NEXT_TASK = execution(crew_task_id="other_task", output="the draft")
RUNS = execution(ExecutionState.RUNNING)
HIDDEN = execution(ExecutionState.NOT_FOUND)


def answer(**more: Any) -> ReviewAnswer:
    return ReviewAnswer.of({**IDS, "is_approve": True, **more})


# --- what is read as an answer ------------------------------------------------------------------------------


def test_the_four_fields_are_an_answer() -> None:
    given = answer(is_approve="False", human_feedback="Shorter", draft="ignored")
    assert given == ReviewAnswer("e-1", "draft_task", "Shorter", False, None, None)
    assert given.request == {
        **IDS,
        **{"human_feedback": "Shorter", "is_approve": False, "output_sha256": None},
    }


def test_a_review_carries_its_draft_hash_and_any_flow_outcome() -> None:
    given = answer(is_approve=None, outcome="drop", output_sha256="a hash")
    assert given == ReviewAnswer("e-1", "draft_task", "drop", None, "a hash", "drop")
    assert given.request == {
        **IDS,
        **{"human_feedback": "drop", "is_approve": None, "output_sha256": "a hash", "outcome": "drop"},
    }


@pytest.mark.parametrize(
    ("source", "lacks"),
    [
        ({}, "execution_id, crew_task_id, is_approve"),
        ({"outcome": "drop"}, "execution_id, crew_task_id"),
        (IDS, "is_approve"),
        ({**IDS, "execution_id": None, "is_approve": False}, "execution_id"),
    ],
)
def test_what_an_answer_lacks_is_named(source: Any, lacks: str) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        ReviewAnswer.of(source)
    assert str(error.value) == f"The answer is missing {lacks}; nothing was sent"


@pytest.mark.parametrize("name", ["execution_id", "crew_task_id"])
@pytest.mark.parametrize("given", ["", "..", "None", 5])
def test_an_id_that_cannot_be_one_is_refused(name: str, given: Any) -> None:
    with pytest.raises(CrewInvalidInput, match="is not a crew service id"):
        answer(**{name: given})


@pytest.mark.parametrize("outcome", ["", "  ", 5, ["drop"], False])
def test_an_outcome_that_is_no_word_is_refused(outcome: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        answer(outcome=outcome)
    assert str(error.value) == "outcome must be a non-empty string; nothing was sent"


@pytest.mark.parametrize("feedback", [5, ["text"], True])
def test_a_feedback_that_is_no_text_is_refused(feedback: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        answer(human_feedback=feedback)
    assert str(error.value) == "human_feedback must be a string; nothing was sent"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "Approved."),
        ({"human_feedback": None}, "Approved."),
        ({"human_feedback": " "}, "Approved."),
        ({"human_feedback": "Fine"}, "Fine"),
        ({"is_approve": False, "human_feedback": "OK?"}, "Please revise: OK?"),
        ({"outcome": "drop"}, "drop"),
        ({"outcome": "drop", "human_feedback": " \n"}, "drop"),
        ({"outcome": "drop", "human_feedback": "OK?"}, "OK?"),
        ({"outcome": "drop", "is_approve": False}, "drop"),
    ],
)
def test_the_text_says_what_the_answer_means(given: Any, text: str) -> None:
    assert answer(**given).human_feedback == text


# --- its draft ----------------------------------------------------------------------------------------------


def test_the_answers_own_hash_takes_precedence_over_the_seen_one() -> None:
    assert answer(output_sha256="a hash").draft("seen") == DraftId("e-1", "draft_task", "a hash")
    assert answer().draft("seen") == DraftId("e-1", "draft_task", "seen")
    assert answer().draft() == DraftId("e-1", "draft_task", None)


def test_a_draft_hashed_as_received_also_matches_its_object_hash() -> None:
    assert hash_of(WAITS) == HASH
    of_object = execution(output='{ "a": 1 }', output_json={"a": 1})
    assert hash_of(of_object) == output_sha256('{ "a": 1 }')
    for named in (output_sha256('{ "a": 1 }'), output_sha256({"a": 1})):
        assert DraftId("e-1", "draft_task", named).waits_in(of_object)
    assert not DraftId("e-1", "draft_task", output_sha256({"a": 2})).waits_in(of_object)
    assert not DraftId("e-1", "draft_task", output_sha256(None)).waits_in(WAITS)


@pytest.mark.parametrize(
    ("seen", "of_the_hash", "of_the_task"),
    [
        (WAITS, True, True),
        (NEW_DRAFT, False, True),
        (NEXT_TASK, False, False),
        (execution(output="the draft"), True, True),
        (execution(output="another"), False, True),
        (execution(ExecutionState.RUNNING, crew_task_id="draft_task", output="the draft"), False, False),
        (execution(ExecutionState.COMPLETED, output="the draft"), False, False),
    ],
)
def test_a_draft_waits_in_a_pause_matching_task_and_text(seen: Execution, of_the_hash: bool, of_the_task: bool) -> None:
    assert DRAFT.waits_in(seen) is of_the_hash
    assert DraftId("e-1", "draft_task").waits_in(seen) is of_the_task


def test_an_answered_draft_explains_a_pause_until_its_time_ends() -> None:
    answered = AnsweredDraft(DRAFT, until=100.0)
    assert answered.is_shown_by(WAITS, now=99.9)
    assert not answered.is_shown_by(WAITS, now=100.0)
    assert not answered.is_shown_by(NEW_DRAFT, now=99.9)


# --- the verdict --------------------------------------------------------------------------------------------

LIVE_WAITS = execution(crew_task_id="draft_task", output="the draft", raw={"state": "PENDING"})
LIVE_HIDDEN = execution(ExecutionState.NOT_FOUND, raw={"state": "PENDING"})
APPROVAL, REVISION = {"is_approve": True}, {"is_approve": False, "human_feedback": "Shorter"}
FLOW = {"is_approve": None, "outcome": "drop"}


@pytest.mark.parametrize(
    ("given", "seen", "first", "again"),
    [
        (APPROVAL, WAITS, Verdict.SEND, Verdict.SEND),
        (APPROVAL, LIVE_WAITS, Verdict.SEND, Verdict.UNKNOWN),
        (APPROVAL, LIVE_HIDDEN, Verdict.SEND, Verdict.UNKNOWN),
        (APPROVAL, HIDDEN, Verdict.HIDDEN, Verdict.HIDDEN),
        (APPROVAL, RUNS, Verdict.NOT_WAITING, Verdict.TAKEN),
        (APPROVAL, NEW_DRAFT, Verdict.ANOTHER_DRAFT, Verdict.ANOTHER_DRAFT),
        (APPROVAL, NEXT_TASK, Verdict.ANOTHER_DRAFT, Verdict.TAKEN),
        (REVISION, NEW_DRAFT, Verdict.ANOTHER_DRAFT, Verdict.TAKEN),
        (REVISION, NEXT_TASK, Verdict.ANOTHER_DRAFT, Verdict.ANOTHER_DRAFT),
        (FLOW, NEW_DRAFT, Verdict.ANOTHER_DRAFT, Verdict.TAKEN),
        (FLOW, NEXT_TASK, Verdict.ANOTHER_DRAFT, Verdict.TAKEN),
    ],
)
def test_the_verdict_on_what_the_service_shows(
    given: dict[str, Any], seen: Execution, first: Verdict, again: Verdict
) -> None:
    assert judge(answer(**given), DRAFT, seen, sent_before=False) is first
    assert judge(answer(**given), DRAFT, seen, sent_before=True) is again


@pytest.mark.row("A57")
@pytest.mark.parametrize("form", [dict, json.dumps, str], ids=["XCom", "JSON", "Python"])
def test_airflow_stores_no_feedback_of_a_review_in_rendered_fields(form: Any) -> None:
    review = {**IDS, "is_approve": False, "human_feedback": "The merger is off. " * 300}
    operator = CrewResumeOperator(task_id="resume", review=form(review))
    operator.render_template_fields({"ti": None})
    shown = {name: serialize_template_field(getattr(operator, name), name) for name in operator.template_fields}
    assert "merger" not in json.dumps(shown)
    assert shown["review"].startswith("review of execution e-1")
    assert record_of(operator.review, "review") == review
