"""The form that was sent decides, whatever the DAG file says by now: its fields, its people, its default."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Param
from airflow_stand_ins import PENDING, Supervisor, parked

from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator

Json = dict[str, Any]
HOUR = timedelta(hours=1)
TONE = {"tone": Param("kind", type="string", enum=["kind", "stern"], description="Of the letter")}
COSTLY = {"state": "completed", "execution_id": "k-1", "kickoff_id": "k-1", "output": "A report."}
COSTLY["usage"] = {"total_tokens": 1500}  # type: ignore[assignment]


@pytest.fixture
def airflow(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(request.param)


def review_of(**arguments: Any) -> CrewReviewOperator:
    return CrewReviewOperator(task_id="review", pending=PENDING, **arguments)


def allowed(**arguments: Any) -> CrewUsageApprovalOperator:
    return CrewUsageApprovalOperator(task_id="allowed", completed=COSTLY, max_total_tokens=1000, **arguments)


def said(option: str = "approve", who: str = "ann", **fields: Any) -> Json:
    now = datetime.now(UTC)
    answer = {"chosen_options": [option], "params_input": fields, "responded_at": now}
    return {**answer, "responded_by_user": {"id": who, "name": who.title()}, "timedout": False}


def retried(context: Json) -> Json:
    context["ti"].try_number, context["ti"].id = 2, uuid.uuid4()
    return context


def cleared(context: Json) -> Json:
    context["ti"].try_number, context["ti"].max_tries, context["ti"].id = 2, 1, uuid.uuid4()
    return context


ON_EACH_AIRFLOW = [  # from 3.4 on, a form ends with its attempt, and a clear sends another
    *(("a_form_for_the_task", again) for again in (None, retried, cleared)),
    *(("a_form_per_attempt", again) for again in (None, retried)),
]


@pytest.mark.row("A44")
def test_the_fields_of_the_dags_author_are_in_the_record(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of(params=TONE).execute(context))
    review = review_of(params=TONE).execute_complete(context, said(human_feedback="", tone="stern"), **kept)
    assert review["params_input"] == {"tone": "stern"}
    assert context["ti"].pushed["crew_decision"]["params_input"] == {"tone": "stern"}


@pytest.mark.row("A44")
def test_an_answer_without_fields_has_those_that_the_form_shows(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of(params=TONE).execute(context))
    assert review_of(params=TONE).execute_complete(context, said(), **kept)["params_input"] == {"tone": "kind"}


@pytest.mark.row("A44")
def test_each_approver_has_filled_in_his_own_fields(context: Json, supervisor: Supervisor) -> None:
    task = {"params": TONE, "approvals": 2}
    kept = parked(lambda: review_of(**task).execute(context))
    ann, bob = said(human_feedback="", tone="stern"), said(who="bob", human_feedback="", tone="kind")
    kept = parked(lambda: review_of(**task).execute_complete(context, ann, **kept))
    review = review_of(**task).execute_complete(context, bob, **kept)
    assert [each["params_input"]["tone"] for each in review["approvals"]] == ["stern", "kind"]


@pytest.mark.row("A44")
@pytest.mark.parametrize(("airflow", "again"), ON_EACH_AIRFLOW, indirect=["airflow"])
@pytest.mark.parametrize(
    ("before", "now", "fields"),
    [
        pytest.param({"params": TONE}, {}, {"tone": "stern"}, id="removed"),
        pytest.param({}, {"params": TONE}, {}, id="added"),
        pytest.param({"params": TONE}, {"params": {"tone": Param(1, type="integer")}}, {"tone": "stern"}, id="changed"),
    ],
)
def test_adding_or_removing_fields_leaves_an_open_form_unchanged(
    context: Json, supervisor: Supervisor, airflow: None, before: Json, now: Json, fields: Json, again: Any
) -> None:
    kept = parked(lambda: review_of(**before).execute(context))
    if again is not None:
        kept = parked(lambda: review_of(**now).execute(again(context)))
    kept = parked(
        lambda: review_of(**now).execute_complete(context, said("revise", human_feedback="", **fields), **kept)
    )
    assert list(supervisor.asked[-1].params) == list(supervisor.asked[0].params)
    assert supervisor.asked[-1].params.get("tone") == supervisor.asked[0].params.get("tone")
    review = review_of(**now).execute_complete(context, said(human_feedback="", **fields), **kept)
    assert review.get("params_input", {}) == fields


@pytest.mark.row("A44")
def test_a_value_that_the_field_refuses_is_asked_for_again(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of(params=TONE).execute(context))
    parked(lambda: review_of().execute_complete(context, said(human_feedback="", tone="rude"), **kept))
    assert "was not accepted because it does not fit the form" in supervisor.asked[-1].body


@pytest.mark.row("A45")
@pytest.mark.usefixtures("a_form_per_attempt")
@pytest.mark.parametrize("make", [review_of, allowed])
@pytest.mark.parametrize("now", [["rita"], None], ids=str)
@pytest.mark.parametrize("is_retried", [False, True])
def test_a_question_asked_again_goes_to_the_same_people(
    context: Json, supervisor: Supervisor, make: Callable[..., Any], now: Any, is_retried: bool
) -> None:
    kept = parked(lambda: make(assigned_users=["ann"]).execute(context))
    if is_retried:
        kept = parked(lambda: make(assigned_users=now).execute(retried(context)))
    parked(lambda: make(assigned_users=now).execute_complete(context, said("maybe"), **kept))
    assert [[user.id for user in form.assigned_users] for form in supervisor.asked] == [["ann"]] * len(supervisor.asked)
    assert len(supervisor.asked) == 2


@pytest.mark.row("A45")
@pytest.mark.usefixtures("a_form_per_attempt")
def test_a_forms_own_steps_decide_who_is_admitted_later(context: Json, supervisor: Supervisor) -> None:
    before, now = [(HOUR, "boss")], [(2 * HOUR, "chief")]
    kept = parked(lambda: review_of(assigned_users=["ann"], escalate=before).execute(context))
    again = review_of(assigned_users=["ann"], escalate=now)
    parked(lambda: again.execute_complete(context, said("maybe"), **{**kept, "step": False}))
    assert "boss may also answer" in supervisor.asked[-1].body
    assert "chief" not in supervisor.asked[-1].body
    assert {user.id for user in supervisor.asked[-1].assigned_users} == {"ann", "boss"}


@pytest.mark.row("A45")
@pytest.mark.parametrize(("before", "now"), [("approve", None), ("approve", "reject")])
def test_the_default_of_an_open_form_decides_at_its_deadline(
    context: Json, supervisor: Supervisor, before: Any, now: Any
) -> None:
    kept = parked(lambda: allowed(defaults=before, response_timeout=HOUR).execute(context))
    late = {**said(before), "responded_by_user": None, "timedout": True}
    assert allowed(defaults=now, response_timeout=HOUR).execute_complete(context, late, **kept) == COSTLY
