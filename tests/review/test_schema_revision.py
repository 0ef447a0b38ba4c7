"""A draft that does not match the schema: sent back once before anybody is asked, else shown with its violations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG
from airflow_stand_ins import PENDING, Supervisor, TaskParked, parked

from airflow_crew_provider.api.answers import ReviewAnswer, reads_like_approval
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.review.answer import decided_by
from airflow_crew_provider.review.form import ReviewForm
from airflow_crew_provider.task_groups.crew import crew_with_review
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

Json = dict[str, Any]
PRICES = {"type": "object", "required": ["total"], "properties": {"total": {"type": "number"}}}
BAD = {**PENDING, "output": {"total": "three"}}
GOOD = {**PENDING, "output": {"total": 3}}
VIOLATION = "$.total: 'three' is not of type 'number'"


def review_of(pending: Json, **more: Any) -> CrewReviewOperator:
    options = {"output_schema": PRICES, "on_schema_mismatch": "revise", "round_number": 1, "max_rounds": 3}
    return CrewReviewOperator(task_id="review", pending=pending, **{**options, **more})


def asked(supervisor: Supervisor, context: Json, review: CrewReviewOperator) -> str:
    """Return the page that a person is shown."""
    with pytest.raises(TaskParked):
        review.execute(context)
    return supervisor.asked[0].body


def test_a_mismatching_draft_is_sent_back_with_each_violation(context: Json, supervisor: Supervisor) -> None:
    review = review_of(BAD).execute(context)
    assert supervisor.asked == []
    assert (review["is_approve"], review["reviewer"], review["schema_revision"]) == (False, None, "this")
    assert VIOLATION in review["human_feedback"]
    assert context["ti"].pushed["crew_decision"]["output"] == {"total": "three"}


def test_a_schema_revision_answers_that_draft_and_is_no_approval(context: Json, supervisor: Supervisor) -> None:
    answer = ReviewAnswer.of(review_of(BAD).execute(context))
    assert (answer.execution_id, answer.crew_task_id, answer.is_approve) == ("execution-1", "draft_task", False)
    assert answer.output_sha256
    assert not reads_like_approval(answer.human_feedback)


def test_a_retry_sends_back_the_very_same(context: Json, supervisor: Supervisor) -> None:
    first, again = (ReviewAnswer.of(review_of(BAD).execute(context)) for _ in range(2))
    assert first == again


def test_clearing_the_wait_causes_no_second_schema_revision(context: Json, supervisor: Supervisor) -> None:
    """The execution went on: by now it waits with the draft that the revision has made, or a person."""
    review_of(BAD).execute(context)
    cleared = {**context, "ti": SimpleNamespace(**{**vars(context["ti"]), "try_number": 2, "max_tries": 1})}
    second = {**BAD, "output": {"total": "still three"}}
    assert VIOLATION not in asked(supervisor, cleared, review_of(second))
    assert "'still three' is not of type" in supervisor.asked[0].body
    other = {**BAD, "execution_id": "execution-2", "output": {"total": "new"}}
    assert review_of(other).execute(context)["schema_revision"] == "this"


def test_a_draft_that_matches_is_shown_to_a_person(context: Json, supervisor: Supervisor) -> None:
    assert "does not match" not in asked(supervisor, context, review_of(GOOD))


def test_a_person_sees_a_second_mismatch_with_its_violations(context: Json, supervisor: Supervisor) -> None:
    before = review_of(BAD).execute(context)
    page = asked(supervisor, context, review_of(BAD, previous=before, round_number=2))
    assert "does not match the output schema" in page
    assert "is not of type 'number'" in page
    assert "Requested in round 1**, by `the schema`" in page


def test_a_persons_answer_remembers_that_the_revision_is_used(context: Json, supervisor: Supervisor) -> None:
    from test_operator import said

    before = review_of(BAD).execute(context)
    second = review_of(GOOD, previous=before, round_number=2).execute_complete(context, said("revise", "Shorter."))
    assert second["schema_revision"] == "earlier"
    asked(supervisor, context, review_of(BAD, previous=second, round_number=3, max_rounds=4))


def test_a_call_denied_unseen_remembers_that_the_revision_is_used(context: Json, supervisor: Supervisor) -> None:
    call = {"kind": "tool", "agent": "Writer", "tool": "send_mail", "arguments": {"text": "x" * 70_000}, "number": 1}
    asks = {**BAD, "crew_task_id": "draft_task#1", "output": "x" * 70_000, "ask": call}
    second = review_of(asks, previous=review_of(BAD).execute(context), round_number=2).execute(context)
    assert (second["outcome"], second["schema_revision"]) == ("deny", "earlier")
    asked(supervisor, context, review_of(BAD, previous=second, round_number=3, max_rounds=4))


def test_a_mismatch_after_a_persons_revision_is_sent_back(context: Json, supervisor: Supervisor) -> None:
    from test_operator import said

    first = review_of(GOOD).execute_complete(context, said("revise", "Shorter."))
    assert review_of(BAD, previous=first, round_number=2).execute(context)["schema_revision"] == "this"


def test_an_earlier_executions_schema_revision_does_not_count(context: Json, supervisor: Supervisor) -> None:
    before = {**review_of(BAD).execute(context), "execution_id": "execution-0"}
    assert review_of(BAD, previous=before, round_number=2).execute(context)["is_approve"] is False


def test_in_the_last_round_nothing_is_sent_back(context: Json, supervisor: Supervisor) -> None:
    assert "does not match" in asked(supervisor, context, review_of(BAD, round_number=3))


# --- nothing but a person approves a draft that does not match ---

SECOND = {"execution_id": BAD["execution_id"], "is_approve": False, "human_feedback": "", "schema_revision": "this"}
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "more",
    [{"on_schema_mismatch": "fail"}, {"previous": SECOND, "round_number": 2}, {"round_number": 3}],
    ids=["only shown", "sent back before", "the last round"],
)
def test_no_rule_approves_a_draft_that_does_not_match(context: Json, supervisor: Supervisor, more: Json) -> None:
    rule = {"auto_approve": lambda record: pytest.fail("asked")}
    assert "does not match" in asked(supervisor, context, review_of(BAD, **rule, **more))
    assert review_of(GOOD, auto_approve=lambda record: "fine", **more).execute(context)["auto_approved"] == "fine"


@pytest.mark.parametrize("policy", ["approve", "fail"])
def test_no_deadline_approves_a_draft_that_does_not_match(context: Json, supervisor: Supervisor, policy: str) -> None:
    def review() -> CrewReviewOperator:
        return review_of(BAD, on_schema_mismatch="fail", response_timeout=HOUR, on_timeout=policy)

    kept = parked(lambda: review().execute(context))
    form = supervisor.asked[0]
    assert "UTC: this task fails and the execution stays paused." in form.body
    assert not form.defaults
    late = {"error": "timed out", "error_type": "timeout"}
    by_airflow = {"chosen_options": ["approve"], "timedout": True, "responded_at": datetime.now(UTC) + HOUR}
    why = "Nobody answered within"
    if policy == "approve":
        why = "This draft does not match the output schema, so it was not approved at the deadline"
    for event in (late, {**by_airflow, "params_input": {}, "responded_by_user": None}):
        with pytest.raises(CrewTaskFailed, match=rf"^{why}.* Nothing was sent: execution execution-1 stays paused"):
            review().execute_complete(context, event, **kept)


def test_a_person_may_approve_a_draft_that_does_not_match(context: Json, supervisor: Supervisor) -> None:
    from test_operator import said

    review = review_of(BAD, on_schema_mismatch="fail", response_timeout=HOUR, on_timeout="approve")
    kept = parked(lambda: review.execute(context))
    event = said("approve", responded_at=datetime.now(UTC))
    assert review.execute_complete(context, event, **kept)["reviewer"]["id"] == "7"


def test_the_deadline_still_revises_a_draft_that_does_not_match(context: Json, supervisor: Supervisor) -> None:
    from test_operator import at_deadline

    policy = {"response_timeout": HOUR, "on_timeout": {"revise": "Numbers, please."}}
    review = review_of(BAD, on_schema_mismatch="fail", **policy)
    kept = parked(lambda: review.execute(context))
    assert review.execute_complete(context, at_deadline("revise"), **kept)["human_feedback"] == "Numbers, please."


REJECTED = {**SECOND, "reviewer": {"id": "7", "name": "Ann"}, "schema_revision": None}
RULES = {"auto_approve": lambda record: "fine", "response_timeout": HOUR, "on_timeout": "approve"}


@pytest.mark.parametrize(
    ("draft", "previous", "decides"),
    [
        (GOOD, None, "auto_approve"),
        (BAD, None, "the schema"),
        (BAD, SECOND, None),
        (GOOD, {**REJECTED, "output_sha256": output_sha256(GOOD["output"])}, None),
        (BAD, {**REJECTED, "output_sha256": output_sha256(BAD["output"])}, "the schema"),
        (BAD, {**SECOND, **REJECTED, "schema_revision": "earlier"}, None),
    ],
    ids=["matches", "first", "again", "matches, rejected", "first, rejected", "again, rejected"],
)
def test_the_first_that_applies_decides_without_a_person(
    context: Json, supervisor: Supervisor, draft: Json, previous: Json | None, decides: str | None
) -> None:
    review = review_of(draft, previous=previous, round_number=2, **RULES)
    if decides is None:
        asked(supervisor, context, review)
    else:
        assert decided_by(review.execute(context)) == decides


def test_with_fail_the_person_only_sees_what_is_wrong(context: Json, supervisor: Supervisor) -> None:
    assert "does not match" in asked(supervisor, context, review_of(BAD, on_schema_mismatch="fail"))


@pytest.mark.parametrize(
    "draft",
    [{"outcomes": ["publish", "drop"], "question": "What now?"}, {"completed_tasks": 0, "total_tasks": 2}],
    ids=["of a Flow", "of a task that others follow"],
)
def test_a_draft_that_is_not_the_output_is_not_compared(context: Json, supervisor: Supervisor, draft: Json) -> None:
    assert "does not match" not in asked(supervisor, context, review_of({**BAD, **draft}))


def test_the_draft_of_the_last_task_is_compared(context: Json, supervisor: Supervisor) -> None:
    last = {**BAD, "completed_tasks": 1, "total_tasks": 2}
    assert review_of(last).execute(context)["schema_revision"] == "this"


def test_a_draft_already_shown_to_people_is_not_sent_back(context: Json, supervisor: Supervisor) -> None:
    asked(supervisor, context, review_of(BAD, on_schema_mismatch="fail"))
    context["ti"].try_number += 1
    with pytest.raises(TaskParked):
        review_of(BAD).execute(context)


def test_draft_text_in_a_violation_is_shown_but_not_rendered(context: Json, supervisor: Supervisor) -> None:
    page = asked(supervisor, context, review_of({**BAD, "output": {"total": "<img src=x>"}}, round_number=3))
    assert "<img" not in page.split("\n---\n")[1]


EDITABLE = {**BAD, "takes_edited_output": True}


def edited(text: str, option: str = "approve") -> Json:
    from test_edited_drafts import said

    return said(text, option, "Shorter." if option == "revise" else "")


def test_a_mismatching_edit_is_refused_and_asked_for_again(context: Json, supervisor: Supervisor) -> None:
    review = review_of(EDITABLE, allow_edit=True, round_number=3)
    with pytest.raises(TaskParked):
        review.execute_complete(context, edited('{"total": "four"}'))
    assert "'four' is not of type 'number'" in supervisor.asked[0].body.split("---")[0]


@pytest.mark.parametrize(
    ("text", "option", "pending"),
    [
        ('{"total": 4}', "approve", {}),
        ('{"total": "four"}', "revise", {}),
        ('{"total": "four"}', "approve", {"takes_edited_output": False}),
        ('{"total": "four"}', "approve", {"completed_tasks": 0, "total_tasks": 2}),
    ],
    ids=["matches", "goes along as feedback", "is feedback at this service", "is not the output"],
)
def test_an_edit_is_accepted_if_matching_or_not_the_output(
    context: Json, supervisor: Supervisor, text: str, option: str, pending: Json
) -> None:
    review = review_of({**EDITABLE, **pending}, allow_edit=True, round_number=2)
    answered = review.execute_complete(context, edited(text, option))
    assert text in (answered.get("edited_output", ""), *answered["human_feedback"].splitlines())


def test_only_short_violations_of_long_drafts_are_kept_and_sent(context: Json, supervisor: Supervisor) -> None:
    long = {**BAD, "output": {"total": "x" * 50_000}}
    assert len(review_of(long).execute(context)["human_feedback"]) < 1_000
    with pytest.raises(TaskParked) as parked:
        review_of({**long, "kickoff_id": "k"}, round_number=3).execute(context)
    assert 50_000 < len(str(vars(parked.value))) < 60_000


def test_the_log_says_that_the_schema_decided(context: Json, supervisor: Supervisor, caplog: Any, capsys: Any) -> None:
    review_of(BAD).execute(context)
    assert "Review: revision by the schema at" in caplog.text + capsys.readouterr().out


def test_an_unimportable_model_fails_before_anybody_is_asked(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(CrewTaskFailed, match="cannot be imported"):
        review_of(BAD, output_schema="no_such_module:Model").execute(context)
    assert supervisor.asked == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_schema_mismatch": "repair"}, "on_schema_mismatch must be 'fail' or 'revise', not 'repair'"),
        ({"output_schema": None}, "on_schema_mismatch='revise' needs output_schema"),
        ({"output_schema": {"type": "objekt"}}, "output_schema is not a JSON Schema"),
    ],
)
def test_invalid_schema_settings_are_refused_at_parse_time(given: Json, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        review_of(BAD, **given)


def test_the_group_hands_schema_and_policy_to_every_review() -> None:
    with DAG("group", schedule=None) as dag:
        crew_with_review(inputs={}, max_rounds=2, output_schema=PRICES, on_schema_mismatch="revise")
    reviews = [dag.get_task(f"crew.round_{number}.review") for number in (1, 2)]
    assert [(each.output_schema, each.on_schema_mismatch) for each in reviews] == [(PRICES, "revise")] * 2


def test_the_group_needs_a_round_for_the_revision() -> None:
    with pytest.raises(ValueError, match="uses up a round"), DAG("group", schedule=None):
        crew_with_review(inputs={}, max_rounds=1, output_schema=PRICES, on_schema_mismatch="revise")


def test_a_form_without_a_schema_says_nothing_of_one() -> None:
    assert "schema" not in ReviewForm(pending=PENDING).body
