"""The question of a Flow, from the status to the resume: its outcomes are the buttons, and a choice needs no model."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow_stand_ins import Supervisor

from airflow_crew_provider.core.review import ReviewAnswer
from airflow_crew_provider.core.status_parser import execution
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed

Json = dict[str, Any]
OUTCOMES = ["publish", "rework", "drop"]
STATUS = {
    "status": "pending",
    "current_task": "check_briefing",
    "task_id": "check_briefing",
    "task_output": "Briefing on tea.",
    "question": "May this go out?",
    "outcomes": OUTCOMES,
    "progress": {"completed_tasks": 1, "total_tasks": None},
}
PENDING = execution("flow-1", STATUS).record()


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = {"conn_type": "crew", "host": "https://crew.example.com", "password": "t"}
    monkeypatch.setenv("AIRFLOW_CONN_CREW_DEFAULT", json.dumps(uri))


def review_of(pending: Json = PENDING, **arguments: Any) -> CrewReviewOperator:
    return CrewReviewOperator(task_id="review", pending=pending, **arguments)


def answered(option: str, feedback: str = "", **more: Any) -> Json:
    params = {"human_feedback": feedback}
    user = {"id": "7", "name": "Ann"}
    answer = {"chosen_options": [option], "params_input": params, "responded_at": datetime(2026, 11, 20, tzinfo=UTC)}
    return {**answer, "responded_by_user": user, "timedout": False, **more}


def test_a_pending_record_of_a_flow_carries_its_question_and_outcomes() -> None:
    seen = execution("flow-1", STATUS)
    assert (seen.question, seen.outcomes) == ("May this go out?", OUTCOMES)
    assert (PENDING["question"], PENDING["outcomes"]) == ("May this go out?", OUTCOMES)


def test_a_flow_that_takes_any_text_has_no_outcomes() -> None:
    record = execution("flow-1", {**STATUS, "outcomes": []}).record()
    assert (record["question"], record["outcomes"]) == ("May this go out?", [])


def test_the_record_of_a_crew_says_nothing_of_a_question() -> None:
    crew = {name: value for name, value in STATUS.items() if name not in ("question", "outcomes")}
    assert not {"question", "outcomes", "flow_id"} & set(execution("k-1", crew).record())


def test_the_buttons_are_the_outcomes_and_the_form_shows_the_question(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(TaskAwaitingInput):
        review_of().execute(context)
    asked = supervisor.asked[-1]
    assert asked.options == OUTCOMES
    assert "May this go out?" in asked.body
    assert "Briefing on tea." in asked.body
    assert asked.defaults is None


@pytest.mark.parametrize("feedback", ["", "Say more on green tea."])
def test_the_review_has_the_chosen_outcome_and_no_approval_where_none_is_meant(context: Json, feedback: str) -> None:
    review = review_of().execute_complete(context, answered("drop", feedback))
    assert (review["outcome"], review["is_approve"], review["human_feedback"]) == ("drop", None, feedback)


@pytest.mark.parametrize(("option", "approves"), [("approved", True), ("rejected", False)])
def test_an_approving_and_a_revising_outcome_say_whether_it_is_an_approval(
    context: Json, option: str, approves: bool
) -> None:
    pending = {**PENDING, "outcomes": ["approved", "rejected"]}
    review = review_of(pending).execute_complete(context, answered(option))
    assert (review["outcome"], review["is_approve"]) == (option, approves)


@pytest.mark.row("F3")
def test_f3_an_outcome_that_the_flow_does_not_know_is_asked_again(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(TaskAwaitingInput):
        review_of().execute_complete(context, answered("approve"))
    assert "`publish`, `rework`, `drop`" in supervisor.asked[-1].body
    assert "was not accepted" in supervisor.asked[-1].body


def test_a_deadline_chooses_an_outcome_only_where_one_can_be_meant(context: Json, supervisor: Supervisor) -> None:
    two = {**PENDING, "outcomes": ["approved", "rejected"]}
    arguments: Json = {"response_timeout": timedelta(hours=1), "on_timeout": "approve"}
    with pytest.raises(TaskAwaitingInput):
        review_of(two, **arguments).execute(context)
    assert supervisor.asked[-1].defaults == ["approved"]
    with pytest.raises(CrewTaskFailed, match="does not determine which outcome of the Flow is meant"):
        review_of(**arguments).execute(context)


@pytest.mark.row("F3")
def test_f3_a_choice_without_feedback_is_never_sent_as_an_empty_text() -> None:
    answer = ReviewAnswer.of({"execution_id": "flow-1", "crew_task_id": "check", "outcome": "drop", "is_approve": None})
    assert (answer.human_feedback, answer.outcome, answer.is_approve) == ("drop", "drop", None)


@pytest.mark.row("F3")
def test_f3_feedback_goes_beside_the_outcome() -> None:
    given = {
        "execution_id": "flow-1",
        "crew_task_id": "check",
        "outcome": "rework",
        "human_feedback": "OK, but shorter.",
    }
    answer = ReviewAnswer.of(given)
    assert (answer.human_feedback, answer.outcome) == ("OK, but shorter.", "rework")


def test_an_answer_without_an_outcome_needs_the_flag() -> None:
    with pytest.raises(CrewInvalidInput, match="lacks is_approve"):
        ReviewAnswer.of({"execution_id": "flow-1", "crew_task_id": "check", "human_feedback": "fine"})
