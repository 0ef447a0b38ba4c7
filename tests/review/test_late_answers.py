"""An answer that a person gives after the deadline, which Airflow accepts until it notices the deadline itself."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow_stand_ins import PENDING, Supervisor, parked

from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

Json = dict[str, Any]
pytestmark = pytest.mark.row("A9")
HOUR = timedelta(hours=1)
CALL = {"kind": "tool", "agent": "Writer", "tool": "send_mail", "arguments": {"to": "ann"}, "number": 1}
IN_A_TASK = {**PENDING, "crew_task_id": "draft_task#1", "output": "May it run?", "ask": CALL}


def review_of(pending: Any = PENDING, **arguments: Any) -> CrewReviewOperator:
    return CrewReviewOperator(task_id="review", pending=pending, **{"response_timeout": 2 * HOUR, **arguments})


def said(kept: Json, option: str, after: timedelta, feedback: str = "", who: str = "ann", **more: Any) -> Json:
    """Return a person's answer, given this long after the deadline."""
    at = datetime.fromisoformat(kept["until"]) + after
    answer = {"chosen_options": [option], "params_input": {"human_feedback": feedback}, "responded_at": at}
    return {**answer, "responded_by_user": {"id": who, "name": who.title()}, "timedout": False, **more}


@pytest.mark.parametrize("option", ["approve", "revise"])
def test_a_late_answer_without_deadline_policy_fails_but_is_kept(
    context: Json, supervisor: Supervisor, log_text: Callable[[], str], option: str
) -> None:
    kept = parked(lambda: review_of().execute(context))
    with pytest.raises(CrewTaskFailed, match=r"^Nobody answered within 2:00:00\. Nothing was sent"):
        review_of().execute_complete(context, said(kept, option, HOUR, "Shorter."), **kept)
    assert context["ti"].pushed["crew_refused_answer"] == {"human_feedback": "Shorter."}
    assert "crew_decision" not in context["ti"].pushed
    assert "The answer from Ann does not count because it came after the deadline" in log_text()


def test_the_deadline_policy_decides_in_place_of_a_late_answer(context: Json, supervisor: Supervisor) -> None:
    policy = {"on_timeout": {"revise": "Say less."}}
    kept = parked(lambda: review_of(**policy).execute(context))
    review = review_of(**policy).execute_complete(context, said(kept, "approve", HOUR, "Fine."), **kept)
    assert (review["is_approve"], review["human_feedback"], review["reviewer"]) == (False, "Say less.", None)


@pytest.mark.row("A21")
def test_a_late_rejection_does_not_count_but_prevents_deadline_approval(context: Json, supervisor: Supervisor) -> None:
    policy = {"on_timeout": "approve"}
    kept = parked(lambda: review_of(**policy).execute(context))
    review = review_of(**policy).execute_complete(context, said(kept, "approve", HOUR), **kept)
    assert (review["is_approve"], review["reviewer"]) == (True, None)
    with pytest.raises(CrewTaskFailed, match="Somebody has rejected this draft"):
        review_of(**policy).execute_complete(context, said(kept, "revise", HOUR, "No."), **kept)


def test_a_late_answer_lets_no_tool_run(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of(IN_A_TASK).execute(context))
    assert "**the call is denied.**" in supervisor.asked[0].body
    given = said(kept, "approve", HOUR, params_input={"human_feedback": "", "edited_draft": '{"to": "ann"}'})
    review = review_of(IN_A_TASK).execute_complete(context, given, **kept)
    assert (review["outcome"], review["reviewer"]) == ("deny", None)


def test_of_several_approvals_each_must_come_in_time(context: Json, supervisor: Supervisor) -> None:
    policy = {"approvals": 2, "on_timeout": {"revise": "Nobody else has looked."}}
    kept = parked(lambda: review_of(**policy).execute(context))
    kept = parked(lambda: review_of(**policy).execute_complete(context, said(kept, "approve", -HOUR), **kept))
    late, in_time = (said(kept, "approve", after, who="bob") for after in (HOUR, -HOUR / 2))
    assert review_of(**policy).execute_complete(context, late, **kept)["is_approve"] is False
    assert len(supervisor.asked) == 2
    approved = review_of(**policy).execute_complete(context, in_time, **kept)
    assert [each["reviewer"]["id"] for each in approved["approvals"]] == ["ann", "bob"]


def test_people_of_an_escalation_step_have_until_the_last_deadline(context: Json, supervisor: Supervisor) -> None:
    people = {"assigned_users": ["ann"], "escalate": [(HOUR, ["boss"])]}
    kept = parked(lambda: review_of(**people).execute(context))
    assert kept["step"] is True
    waited = {name: kept[name] for name in ("until", "shown")}
    boss = said(kept, "approve", -HOUR / 2, who="boss")
    for resumed_with in (kept, waited):
        assert review_of(**people).execute_complete(context, boss, **resumed_with)["reviewer"]["id"] == "boss"
    for resumed_with in (kept, waited):
        with pytest.raises(CrewTaskFailed, match="Nobody answered within"):
            review_of(**people).execute_complete(context, said(kept, "approve", HOUR, who="boss"), **resumed_with)


@pytest.mark.parametrize("after", [timedelta(days=-1), timedelta(0), timedelta(seconds=59)], ids=str)
def test_an_answer_in_time_counts_however_late_it_is_delivered(
    context: Json, supervisor: Supervisor, after: timedelta
) -> None:
    kept = parked(lambda: review_of().execute(context))
    kept["until"] = (datetime.fromisoformat(kept["until"]) - timedelta(days=30)).isoformat()
    assert review_of().execute_complete(context, said(kept, "approve", after), **kept)["reviewer"]["id"] == "ann"


def test_a_late_and_invalid_answer_is_not_asked_for_again(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of().execute(context))
    with pytest.raises(CrewTaskFailed, match="Nobody answered within"):
        review_of().execute_complete(context, said(kept, "revise", HOUR, ""), **kept)
    unreadable = said(kept, "approve", HOUR, error="Airflow cannot read it back", error_type="validation")
    with pytest.raises(CrewTaskFailed, match="Nobody answered within"):
        review_of().execute_complete(context, unreadable, **json.loads(json.dumps(kept)))
    assert len(supervisor.asked) == 1


COSTLY = {"state": "completed", "execution_id": "k-1", "kickoff_id": "k-1", "output": "A report."}
COSTLY["usage"] = {"total_tokens": 1500}


@pytest.mark.parametrize("defaults", [None, ["approve"]], ids=str)
def test_a_late_answer_about_the_usage_is_the_deadline(context: Json, supervisor: Supervisor, defaults: Any) -> None:
    def allowed() -> CrewUsageApprovalOperator:
        limits = {"max_total_tokens": 1000, "response_timeout": HOUR, "fail_on_reject": True}
        return CrewUsageApprovalOperator(task_id="allowed", completed=COSTLY, **limits, defaults=defaults)

    kept = parked(lambda: allowed().execute(context))
    assert allowed().execute_complete(context, said(kept, "approve", -HOUR, params_input={}), **kept) == COSTLY
    late = said(kept, "approve", HOUR, params_input={})
    if defaults:
        assert allowed().execute_complete(context, late, **kept) == COSTLY
    else:
        with pytest.raises(CrewTaskFailed, match="Nobody decided within"):
            allowed().execute_complete(context, late, **kept)


@pytest.mark.row("A21")
@pytest.mark.parametrize("fail_on_reject", [False, True])
@pytest.mark.parametrize("defaults", ["approve", "reject"])
def test_no_deadline_approves_the_usage_after_a_late_rejection(
    context: Json, supervisor: Supervisor, defaults: str, fail_on_reject: bool
) -> None:
    def allowed() -> CrewUsageApprovalOperator:
        limits = {"max_total_tokens": 1000, "response_timeout": HOUR, "fail_on_reject": fail_on_reject}
        return CrewUsageApprovalOperator(task_id="allowed", completed=COSTLY, **limits, defaults=defaults)

    kept = parked(lambda: allowed().execute(context))
    late = said(kept, "reject", HOUR, params_input={})
    rejects = defaults == "reject" and not fail_on_reject
    with pytest.raises(AirflowSkipException if rejects else CrewTaskFailed) as failed:
        allowed().execute_complete(context, late, **kept)
    not_approved = "Somebody has rejected this output, of execution k-1, so it was not approved at the deadline. It is "
    not_approved += "not passed on; the service still has it"
    rejected = "the deadline chose to reject the output of execution k-1"
    assert str(failed.value) == (rejected if defaults == "reject" else not_approved)


def costly(**more: Any) -> CrewUsageApprovalOperator:
    limits = {"max_total_tokens": 1000, "response_timeout": HOUR, "defaults": "approve", **more}
    return CrewUsageApprovalOperator(task_id="allowed", completed=COSTLY, **limits)


UNFIT = [
    pytest.param({"params_input": {"note": "Too dear."}}, id="another field"),
    pytest.param({"error": "no", "error_type": "validation"}, id="unreadable fields"),
]
AT_DEADLINE = {"chosen_options": ["approve"], "params_input": {}, "responded_by_user": None, "timedout": True}


@pytest.mark.row("A41")
@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("is_cleared", [False, True], ids=["", "cleared"])
@pytest.mark.parametrize(
    ("task", "no"), [(costly, "reject"), (lambda: review_of(on_timeout="approve"), "revise")], ids=["usage", "review"]
)
def test_no_deadline_approves_after_a_rejection_that_was_not_accepted(
    context: Json, supervisor: Supervisor, task: Callable[[], Any], no: str, unfit: Json, is_cleared: bool
) -> None:
    kept = parked(lambda: task().execute(context))
    kept = parked(lambda: task().execute_complete(context, said(kept, no, -HOUR / 2, **unfit), **kept))
    if is_cleared:
        context["ti"].try_number, context["ti"].max_tries, context["ti"].id = 2, 1, uuid.uuid4()
        kept = parked(lambda: task().execute(context))
    with pytest.raises(CrewTaskFailed, match="has rejected this"):
        task().execute_complete(context, {**AT_DEADLINE, "responded_at": datetime.now(UTC) + 3 * HOUR}, **kept)


@pytest.mark.row("A41")
@pytest.mark.parametrize("fail_on_reject", [False, True])
def test_no_deadline_approves_a_usage_rejected_before_a_clear(
    context: Json, supervisor: Supervisor, fail_on_reject: bool
) -> None:
    kept = parked(lambda: costly().execute(context))
    rejection = said(kept, "reject", -HOUR / 2, params_input={})
    with pytest.raises(CrewTaskFailed if fail_on_reject else AirflowSkipException, match="Ann chose to reject"):
        costly(fail_on_reject=fail_on_reject).execute_complete(context, rejection, **kept)
    context["ti"].try_number, context["ti"].max_tries, context["ti"].id = 2, 1, uuid.uuid4()
    kept = parked(lambda: costly().execute(context))
    at_deadline = {**AT_DEADLINE, "responded_at": datetime.now(UTC) + 3 * HOUR}
    with pytest.raises(CrewTaskFailed, match="Somebody has rejected this output, of execution k-1"):
        costly().execute_complete(context, at_deadline, **kept)


@pytest.mark.row("A41")
def test_a_rejected_usage_is_that_of_one_execution(context: Json, supervisor: Supervisor) -> None:
    """Another execution of the run may have cost less, and leave its output in the same file."""
    operator = costly()
    kept = parked(lambda: operator.execute(context))
    with pytest.raises(CrewTaskFailed, match="Somebody has rejected this output, of execution k-1"):
        operator.execute_complete(context, said(kept, "reject", HOUR, params_input={}), **kept)
    context["ti"].try_number, context["ti"].max_tries, context["ti"].id = 2, 1, uuid.uuid4()
    operator.completed = {**COSTLY, "execution_id": "k-2", "usage": {"total_tokens": 1100}}
    kept = parked(lambda: operator.execute(context))
    late = {**AT_DEADLINE, "responded_at": datetime.now(UTC) + 3 * HOUR}
    assert operator.execute_complete(context, late, **kept)["execution_id"] == "k-2"


@pytest.mark.row("A41")
def test_a_refused_answer_about_usage_is_kept(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: costly().execute(context))
    unfit = said(kept, "reject", -HOUR / 2, params_input={"note": "Too dear."})
    parked(lambda: costly().execute_complete(context, unfit, **kept))
    assert context["ti"].pushed["crew_refused_answer"] == {"note": "Too dear."}
