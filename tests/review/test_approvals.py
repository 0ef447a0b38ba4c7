"""Two people must approve: different ones, and any revision counts at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, TaskDeferred
from airflow_stand_ins import PENDING, Supervisor, parked

from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.kickoff.request import binding_review
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.review.answer import shown_draft
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

Json = dict[str, Any]
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def review_of(**arguments: Any) -> CrewReviewOperator:
    return CrewReviewOperator(task_id="review", **{"pending": PENDING, "approvals": 2, **arguments})


def said(who: str | None, option: str = "approve", feedback: str = "") -> Json:
    at = NOW if who else datetime.now(UTC)
    answer = {"chosen_options": [option], "params_input": {"human_feedback": feedback}, "responded_at": at}
    return {**answer, "responded_by_user": {"id": who, "name": who.title()} if who else None, "timedout": not who}


@pytest.fixture
def kwargs(context: Json, supervisor: Supervisor) -> Json:
    return parked(lambda: review_of().execute(context))


def looked_again(context: Json) -> Json:
    """Run the task anew: it looks for an answer to the question that stands; return what it keeps meanwhile."""
    with pytest.raises(TaskDeferred) as looks:
        review_of().execute(context)
    return dict(looks.value.kwargs)


def test_the_second_approval_by_another_person_ends_it(context: Json, supervisor: Supervisor, kwargs: Json) -> None:
    kwargs = parked(lambda: review_of().execute_complete(context, said("ann", feedback="Fine."), **kwargs))
    assert "Approved by `ann`; 1 more must approve." in supervisor.asked[1].body
    assert "**2 different people** must approve" in supervisor.asked[0].body
    review = review_of().execute_complete(context, said("bob", feedback="Good."), **kwargs)
    assert (review["is_approve"], review["reviewer"]["id"]) == (True, "bob")
    assert review["human_feedback"] == "Fine.\n\nGood."
    assert [each["reviewer"]["name"] for each in review["approvals"]] == ["Ann", "Bob"]


def test_joined_approval_texts_never_read_as_a_revision(context: Json, kwargs: Json) -> None:
    """A live deployment decides by the text: it would run the task again."""
    parked(lambda: review_of().execute_complete(context, said("ann", feedback="LGTM"), **kwargs))
    review = review_of().execute_complete(context, said("bob", feedback="Approved."), **kwargs)
    assert (review["is_approve"], review["human_feedback"]) == (True, "")
    assert [each["human_feedback"] for each in review["approvals"]] == ["LGTM", "Approved."]


def test_the_same_person_twice_does_not_count(context: Json, supervisor: Supervisor, kwargs: Json) -> None:
    again = parked(lambda: review_of().execute_complete(context, said("ann"), **kwargs))
    kwargs = parked(lambda: review_of().execute_complete(context, said("ann"), **again))
    assert "`Ann` has already approved, but another person must" in supervisor.asked[2].body
    review = review_of().execute_complete(context, said("bob"), **kwargs)
    assert [each["reviewer"]["id"] for each in review["approvals"]] == ["ann", "bob"]


@pytest.mark.parametrize("nobody", [None, {}, {"id": "", "name": ""}], ids=str)
def test_an_approval_that_names_nobody_does_not_count(
    context: Json, supervisor: Supervisor, kwargs: Json, nobody: Json | None
) -> None:
    unnamed = {**said("ann"), "responded_by_user": nobody}
    kwargs = parked(lambda: review_of().execute_complete(context, unnamed, **kwargs))
    assert "does not report who approved, but different people must approve" in supervisor.asked[1].body
    kwargs = parked(lambda: review_of().execute_complete(context, said("bob"), **kwargs))
    review = review_of().execute_complete(context, said("ann"), **kwargs)
    assert [each["reviewer"]["id"] for each in review["approvals"]] == ["bob", "ann"]


@pytest.mark.parametrize("second", ["ann", "bob"])
def test_a_revision_by_either_of_two_approvers_wins(
    context: Json, supervisor: Supervisor, kwargs: Json, second: str
) -> None:
    kwargs = parked(lambda: review_of().execute_complete(context, said("ann"), **kwargs))
    review = review_of().execute_complete(context, said(second, "revise", "Shorter."), **kwargs)
    assert (review["is_approve"], review["human_feedback"]) == (False, "Shorter.")
    assert "approvals" not in review


def test_a_revision_that_comes_first_needs_nobody_else(context: Json, kwargs: Json) -> None:
    review = review_of().execute_complete(context, said("ann", "revise", "Shorter."), **kwargs)
    assert review["is_approve"] is False


def test_an_approval_survives_a_task_lost_before_asking_another_person(
    context: Json, supervisor: Supervisor, kwargs: Json
) -> None:
    supervisor.kills = True
    with pytest.raises(KeyboardInterrupt):
        review_of().execute_complete(context, said("ann"), **kwargs)
    supervisor.kills = False
    context["ti"].try_number = 2
    looks = looked_again(context)
    # The answer of before may still be there: it is Ann's, and counts once.
    kwargs = parked(lambda: review_of().execute_complete(context, said("ann"), **looks))
    review = review_of().execute_complete(context, said("bob"), **kwargs)
    assert [each["reviewer"]["id"] for each in review["approvals"]] == ["ann", "bob"]


def test_the_last_approval_is_taken_again_after_a_lost_task(context: Json, kwargs: Json) -> None:
    kwargs = parked(lambda: review_of().execute_complete(context, said("ann"), **kwargs))
    first = review_of().execute_complete(context, said("bob"), **kwargs)
    context["ti"].try_number = 2
    looks = looked_again(context)
    assert review_of().execute_complete(context, said("bob"), **looks) == first


def test_a_clear_begins_anew(context: Json, supervisor: Supervisor, kwargs: Json) -> None:
    parked(lambda: review_of().execute_complete(context, said("ann"), **kwargs))
    context["ti"].max_tries = context["ti"].try_number = context["ti"].try_number + 1
    looks = looked_again(context)
    kwargs = parked(lambda: review_of().execute_complete(context, said("bob"), **looks))
    review = review_of().execute_complete(context, said("ann"), **kwargs)
    assert [each["reviewer"]["id"] for each in review["approvals"]] == ["bob", "ann"]


def test_the_deadline_decides_although_one_person_has_approved(context: Json, supervisor: Supervisor) -> None:
    policy = {"response_timeout": 60, "on_timeout": {"revise": "Nobody else has looked."}}
    kwargs = parked(lambda: review_of(**policy).execute(context))
    parked(lambda: review_of(**policy).execute_complete(context, said("ann"), **kwargs))
    review = review_of(**policy).execute_complete(context, said(None, "revise"), **kwargs)
    assert (review["is_approve"], review["reviewer"]) == (False, None)


def test_a_flow_without_an_approving_outcome_is_not_asked(context: Json, supervisor: Supervisor) -> None:
    pending = {**PENDING, "question": "Where to?", "outcomes": ["publish", "keep", "drop"]}
    with pytest.raises(CrewTaskFailed, match="2 approvals are required, but the outcomes of the Flow"):
        review_of(pending=pending).execute(context)
    assert supervisor.asked == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"approvals": 0}, "approvals must be an integer >= 1"),
        ({"approvals": True}, "approvals must be an integer >= 1"),
        ({"approvals": "2"}, "approvals must be an integer >= 1"),
        ({"assigned_users": ["ann"]}, "as many different users"),
        ({"assigned_users": ["ann", "ann"]}, "as many different users"),
        ({"assigned_users": ["ann", "ann "]}, "as many different users"),
        ({"allow_edit": "False"}, "allow_edit must be True or False"),
        ({"max_rounds": "1"}, "max_rounds must be an integer >= 1"),
        ({"round_number": 0}, "round_number must be an integer >= 1"),
        ({"allow_edit": True}, "would not see the edited draft"),
    ],
)
def test_invalid_approval_settings_are_refused_in_the_dag_file(arguments: Json, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        review_of(**arguments)


def test_the_users_of_the_escalation_may_be_the_second_ones(context: Json) -> None:
    assert review_of(assigned_users=["ann"], escalate=[(3600, "boss")]).approvals == 2


@pytest.mark.parametrize(
    ("fixed", "mapped", "found"),
    [
        ({"approvals": 2}, {}, (2, False)),
        ({"assigned_users": ["ann", "bob"], "approvals": 2}, {}, (2, True)),
        ({"assigned_users": ["ann"]}, {}, (1, True)),
        ({}, {"assigned_users": [["ann"], ["bob"]]}, (1, True)),
        ({}, {}, None),
        ({"assigned_users": None}, {}, None),
    ],
)
def test_a_mapped_review_is_named_to_the_services_page_too(fixed: Json, mapped: Json, found: Any) -> None:
    with DAG("dag", schedule=None) as dag:
        kickoff = CrewKickoffOperator(task_id="kickoff", inputs={})
        kickoff >> CrewReviewOperator.partial(task_id="review", **fixed).expand(pending=[PENDING], **mapped)
    named = found and {"task_id": "review", "approvals": found[0], "named_people": found[1]}
    assert binding_review(dag.get_task("kickoff")) == named
    with DAG("dag", schedule=None) as dag:
        kickoff = CrewKickoffOperator(task_id="kickoff", inputs={})
        kickoff >> CrewReviewOperator.partial(task_id="review", **fixed).expand_kwargs([{"pending": PENDING, **mapped}])
    if not mapped:
        assert binding_review(dag.get_task("kickoff")) == named


LIVE = {**PENDING, "dialect": "live"}


@pytest.mark.row("A46")
def test_comments_on_a_live_draft_are_recorded_but_not_sent(
    context: Json, supervisor: Supervisor, log_text: Callable[[], str]
) -> None:
    kwargs = parked(lambda: review_of(pending=LIVE).execute(context))
    assert (
        "* **approve**: the crew continues with this draft. It does not read your *Feedback*."
        in supervisor.asked[0].body
    )
    kwargs = parked(
        lambda: review_of(pending=LIVE).execute_complete(context, said("ann", feedback="Fine work."), **kwargs)
    )
    review = review_of(pending=LIVE).execute_complete(context, said("bob", feedback="Good work."), **kwargs)
    assert (review["human_feedback"], review["sent_feedback"]) == ("Fine work.\n\nGood work.", "Approved.")
    assert ReviewAnswer.of(review).human_feedback == "Approved."
    assert context["ti"].pushed["crew_decision"]["sent_feedback"] == "Approved."
    assert 'feedback "Fine work.\\n\\nGood work.", which the crew does not read' in log_text()


@pytest.mark.row("A46")
@pytest.mark.parametrize(
    ("pending", "option", "feedback"),
    [
        pytest.param(LIVE, "approve", "LGTM", id="reads like an approval"),
        pytest.param(LIVE, "approve", " ", id="empty"),
        pytest.param(LIVE, "revise", "Shorter.", id="a revision"),
        pytest.param(PENDING, "approve", "Fine work.", id="not known to be live"),
        pytest.param({**LIVE, "question": "Well?"}, "approve", "Fine work.", id="a Flow"),
    ],
)
def test_other_texts_are_sent_as_they_are(context: Json, pending: Json, option: str, feedback: str) -> None:
    task = review_of(pending=pending, approvals=1)
    review = task.execute_complete(context, said("ann", option, feedback), shown=shown_draft(pending))
    assert "sent_feedback" not in review
    assert ReviewAnswer.of(review).human_feedback == ((feedback.strip() and feedback) or "Approved.")
