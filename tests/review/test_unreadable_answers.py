"""An answer by REST with values that Airflow stores and cannot read back: asked again, and no try is lost for good."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.trigger import handle_event_submit
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.triggers.base import TriggerEvent
from airflow_stand_ins import PENDING, Supervisor, parked

from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator
from airflow_crew_provider.review.airflow_form import TaskDeferralError
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

Json = dict[str, Any]
NOT_SERIALIZED = {"x": {"__classname__": "y"}}
NOT_DESERIALIZED = {"x": {"__type": "y", "__var": 1}}
IN_A_FIELD = {"human_feedback": {"__classname__": "y"}}
NESTED = {"human_feedback": "Good.", "x": [{"y": {"__id__": "z"}}]}
ANSWERS = pytest.mark.parametrize("given", [NOT_SERIALIZED, NOT_DESERIALIZED, IN_A_FIELD, NESTED], ids=str)
UNREADABLE = "by `Ann` was not accepted because it does not fit the form: `Airflow cannot read back these fields: {}`"


def review_of(**arguments: Any) -> CrewReviewOperator:
    return CrewReviewOperator(task_id="review", pending=PENDING, **{"retries": 0, **arguments})


def usage_of() -> CrewUsageApprovalOperator:
    record = {**PENDING, "state": "completed", "usage": {"total_tokens": 9}}
    return CrewUsageApprovalOperator(task_id="usage", completed=record, max_total_tokens=1, retries=0)


def said(option: str, given: Json) -> Json:
    who = {"id": "7", "name": "Ann"}
    now = datetime.now(UTC)
    return {"chosen_options": [option], "params_input": given, "responded_at": now, "responded_by_user": who}


def looks(run: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferred:
        run()
    return deferred.value


def brought(task: Any, context: Json, kept: Json, event: Json) -> Any:
    """Bring an event to a task as Airflow does, through what it stores."""
    from airflow.sdk.serde import deserialize, serialize

    ti = SimpleNamespace(next_method="execute_complete", next_kwargs=serialize(kept))
    handle_event_submit(TriggerEvent(event), task_instance=ti, session=SimpleNamespace(flush=lambda: None))
    return task.resume_execution(ti.next_method, deserialize(ti.next_kwargs), context)


def found_by(deferred: TaskDeferred, supervisor: Supervisor, answer: Json) -> Json:
    """Return what the trigger of a task that looks for an answer fires with."""
    supervisor.answer = answer
    deferred.trigger.not_before = 0.0
    return asyncio.run(anext(deferred.trigger.run())).payload


def asked_again(make: Any, context: Json, supervisor: Supervisor, deferred: TaskDeferred, answer: Json) -> Json:
    """Let a task find an answer and ask again; return what it keeps."""
    event = found_by(deferred, supervisor, answer)
    return parked(lambda: brought(make(), context, deferred.kwargs, event))


@pytest.mark.since_airflow("3.3")
@pytest.mark.row("A20")
@pytest.mark.parametrize("make", [review_of, usage_of])
def test_an_undelivered_answer_is_looked_for_in_the_same_try(context: Json, supervisor: Supervisor, make: Any) -> None:
    answer = said("approve", NOT_SERIALIZED)
    kept = parked(lambda: make().execute(context))
    deferred = looks(lambda: brought(make(), context, kept, answer))
    asked_again(make, context, supervisor, deferred, answer)
    assert len(supervisor.asked) == 2
    assert UNREADABLE.format("x") in supervisor.asked[1].body


@pytest.mark.since_airflow("3.2")
@pytest.mark.row("A20")
@ANSWERS
@pytest.mark.parametrize("cleared", [False, True], ids=["retry", "clear"])
def test_after_an_answer_kills_a_try_the_next_answer_counts(
    context: Json, supervisor: Supervisor, given: Json, cleared: bool
) -> None:
    parked(lambda: review_of().execute(context))
    context["ti"].try_number = 2
    context["ti"].max_tries = int(cleared)
    deferred = looks(lambda: review_of().execute(context))
    kept = asked_again(review_of, context, supervisor, deferred, said("approve", given))
    assert len(supervisor.asked) == 2
    assert "by `Ann` was not accepted because it does not fit the form: `" in supervisor.asked[1].body
    review = brought(review_of(), context, kept, said("approve", {"human_feedback": "Good."}))
    assert (review["is_approve"], review["human_feedback"]) == (True, "Good.")


@pytest.mark.since_airflow("3.2")
@pytest.mark.row("A20")
@ANSWERS
def test_a_delivered_answer_that_fits_no_xcom_is_not_accepted(
    context: Json, supervisor: Supervisor, given: Json
) -> None:
    from airflow.sdk.serde import serialize

    context["ti"].xcom_push = lambda key, value: serialize(value)
    kept = parked(lambda: review_of().execute(context))
    parked(lambda: review_of().execute_complete(context, said("approve", given), **kept))
    assert "**The last answer by `Ann` was not accepted because" in supervisor.asked[-1].body


@pytest.mark.since_airflow("3.2")
@pytest.mark.row("A20", "A21")
@pytest.mark.parametrize("given", [NOT_SERIALIZED, {"human_feedback": 5}], ids=str)
def test_a_rejection_whose_fields_do_not_fit_still_rejects(context: Json, supervisor: Supervisor, given: Json) -> None:
    def make() -> CrewReviewOperator:
        return review_of(on_timeout="approve", response_timeout=3600)

    parked(lambda: make().execute(context))
    context["ti"].try_number = 2
    deferred = looks(lambda: make().execute(context))
    kept = asked_again(make, context, supervisor, deferred, said("revise", given))
    late = {**said("approve", {"human_feedback": ""}), "responded_by_user": None, "timedout": True}
    with pytest.raises(CrewTaskFailed, match="Somebody has rejected this draft"):
        make().execute_complete(context, late, **kept)


@pytest.mark.row("A13", "A20")
def test_a_failed_look_leaves_the_question_to_the_next_try(context: Json, supervisor: Supervisor) -> None:
    parked(lambda: review_of().execute(context))
    failed = ("__fail__", {"error": "Trigger failure"}, context)
    looks(lambda: review_of().resume_execution(*failed))
    with pytest.raises(TaskDeferralError):
        review_of().resume_execution(*failed)
    assert len(supervisor.asked) == 1
