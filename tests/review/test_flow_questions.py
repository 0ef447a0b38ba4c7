"""The question of a Flow, from the status to the resume: its outcomes are the buttons, and a choice needs no model."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow_stand_ins import Supervisor, TaskParked

from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.api.status import execution
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.questions import Terms
from airflow_crew_provider.review.form import ReviewForm
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

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


def test_a_flows_pending_record_carries_its_question_and_outcomes() -> None:
    seen = execution("flow-1", STATUS)
    assert (seen.question, seen.outcomes) == ("May this go out?", OUTCOMES)
    assert (PENDING["question"], PENDING["outcomes"]) == ("May this go out?", OUTCOMES)


def test_a_flow_that_takes_any_text_has_no_outcomes() -> None:
    record = execution("flow-1", {**STATUS, "outcomes": []}).record()
    assert (record["question"], record["outcomes"]) == ("May this go out?", [])


def test_the_record_of_a_crew_says_nothing_of_a_question() -> None:
    crew = {name: value for name, value in STATUS.items() if name not in ("question", "outcomes")}
    assert not {"question", "outcomes", "flow_id"} & set(execution("k-1", crew).record())


def test_the_form_shows_the_question_with_outcomes_as_buttons(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(TaskParked):
        review_of().execute(context)
    asked = supervisor.asked[-1]
    assert asked.options == OUTCOMES
    assert "May this go out?" in asked.body
    assert "Briefing on tea." in asked.body
    assert asked.defaults is None


@pytest.mark.parametrize(
    ("outcomes", "hint"),
    [(OUTCOMES, "Sent with your choice"), ([], "Your answer"), (None, "What to change; required for a revision")],
    ids=["outcomes", "text", "crew"],
)
def test_the_field_says_what_becomes_of_the_feedback(
    context: Json, supervisor: Supervisor, outcomes: list[str] | None, hint: str
) -> None:
    question = {} if outcomes is None else {"question": "Good?", "outcomes": outcomes}
    crew = {name: value for name, value in PENDING.items() if name not in ("question", "outcomes")}
    with pytest.raises(TaskParked):
        review_of({**crew, **question}).execute(context)
    assert supervisor.asked[-1].params["human_feedback"]["description"] == hint


@pytest.mark.parametrize("feedback", ["", "Say more on green tea."])
def test_a_neutral_outcome_is_recorded_without_an_approval(context: Json, feedback: str) -> None:
    review = review_of().execute_complete(context, answered("drop", feedback))
    assert (review["outcome"], review["is_approve"], review["human_feedback"]) == ("drop", None, feedback)


@pytest.mark.parametrize(("option", "approves"), [("approved", True), ("rejected", False)])
def test_an_approving_or_revising_outcome_says_whether_it_approves(context: Json, option: str, approves: bool) -> None:
    pending = {**PENDING, "outcomes": ["approved", "rejected"]}
    review = review_of(pending).execute_complete(context, answered(option))
    assert (review["outcome"], review["is_approve"]) == (option, approves)


LAST = {"round_number": 1, "max_rounds": 1}


@pytest.mark.parametrize(
    ("outcomes", "option"), [(["approved", "rejected"], "rejected"), ([], "revise")], ids=["outcome", "text"]
)
def test_no_flow_answer_is_held_back_in_the_last_round(context: Json, outcomes: list[str], option: str) -> None:
    review = review_of({**PENDING, "outcomes": outcomes}, **LAST).execute_complete(context, answered(option, "Not now"))
    assert (review["is_approve"], review["human_feedback"]) == (False, "Not now")


def form(pending: Json, **more: Any) -> ReviewForm:
    rounds = {name: more.pop(name) for name in ("round_number", "max_rounds") if name in more}
    return ReviewForm(pending=pending, terms=replace(more.pop("terms", Terms()), **rounds), **more)


def test_the_form_says_who_asks_and_what_each_outcome_does() -> None:
    body = form({**PENDING, "agent": "BriefingFlow"}).body
    assert "The method `check_briefing` of the Flow `BriefingFlow` returned this draft" in body
    assert "`publish`, `rework` or `drop`: the Flow continues with your choice." in body
    assert "last round" not in body
    last = form(PENDING, **LAST).body
    assert "**This is the last round**: if the Flow asks again, this run fails and the execution stays paused." in last


def test_the_form_says_a_free_text_flow_continues_with_feedback() -> None:
    body = form({**PENDING, "outcomes": []}, **LAST).body
    assert "the Flow continues with your *Feedback*, or with `Approved.` if you enter none." in body
    assert "runs again" not in body
    assert "a revision is not sent" not in body


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("approve", "**`approved` is chosen**, unless somebody has rejected the draft."),
        ({"revise": "Later."}, "`rejected` is chosen, with this text:\n\n> Later."),
    ],
)
def test_the_form_says_which_outcome_is_chosen_at_the_deadline(policy: Any, told: str) -> None:
    pending = {**PENDING, "outcomes": ["approved", "rejected"]}
    assert told in form(pending, until=datetime(2026, 11, 20, tzinfo=UTC), terms=Terms(on_timeout=policy)).body


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            {"outcome": "rework", "human_feedback": "Say less."},
            "**Chosen in round 1**, by `ann`: `rework`\n\n> Say less.",
        ),
        ({"outcome": "publish", "human_feedback": ""}, "**Chosen in round 1**, by `ann`: `publish`\n\n*"),
        ({"outcome": None, "human_feedback": "the board"}, "**Answered in round 1**, by `ann`:\n\n> the board"),
        ({"outcome": None, "human_feedback": ""}, "**Approved in round 1**, by `ann`\n\n*"),
    ],
    ids=["outcome-and-text", "outcome", "text", "approval"],
)
def test_the_form_tells_what_the_flow_was_answered_before(said: Json, told: str) -> None:
    previous = {"crew_task_id": "check_facts", "is_approve": True, "reviewer": {"id": "7", "name": "ann"}, **said}
    assert told in form(PENDING, round_number=2, previous=previous).body


@pytest.mark.row("F3")
def test_an_outcome_unknown_to_the_flow_is_asked_again(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(TaskParked):
        review_of().execute_complete(context, answered("approve"))
    assert "`publish`, `rework`, `drop`" in supervisor.asked[-1].body
    assert "was not accepted" in supervisor.asked[-1].body


def test_a_deadline_chooses_an_outcome_only_where_unambiguous(context: Json, supervisor: Supervisor) -> None:
    two = {**PENDING, "outcomes": ["approved", "rejected"]}
    arguments: Json = {"response_timeout": timedelta(hours=1), "on_timeout": "approve"}
    with pytest.raises(TaskParked):
        review_of(two, **arguments).execute(context)
    assert supervisor.asked[-1].defaults == ["approved"]
    with pytest.raises(CrewTaskFailed, match="does not determine which outcome of the Flow is meant"):
        review_of(**arguments).execute(context)


@pytest.mark.row("F3")
def test_a_choice_without_feedback_is_never_sent_as_empty_text() -> None:
    answer = ReviewAnswer.of({"execution_id": "flow-1", "crew_task_id": "check", "outcome": "drop", "is_approve": None})
    assert (answer.human_feedback, answer.outcome, answer.is_approve) == ("drop", "drop", None)


@pytest.mark.row("F3")
def test_feedback_goes_beside_the_outcome() -> None:
    given = {
        "execution_id": "flow-1",
        "crew_task_id": "check",
        "outcome": "rework",
        "human_feedback": "OK, but shorter.",
    }
    answer = ReviewAnswer.of(given)
    assert (answer.human_feedback, answer.outcome) == ("OK, but shorter.", "rework")


def test_an_answer_without_an_outcome_needs_the_flag() -> None:
    with pytest.raises(CrewInvalidInput, match="missing is_approve"):
        ReviewAnswer.of({"execution_id": "flow-1", "crew_task_id": "check", "human_feedback": "fine"})
