"""A person decides whether the output of a costly execution may be used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow_stand_ins import Supervisor, TaskParked, parked, time_left
from faults.proxy import POLL, Fault, FaultProxy, Forward
from faults.wire import Reply

from airflow_crew_provider.api.status import USAGE
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from crew_service.local import running_service
from crew_service.prices import Price, Prices
from scripts.stack.waiting import wait_until

Json = dict[str, Any]
PLACE = " · dag"  # where the question is asked


def record(tokens: Any = 1500, execution_id: str = "k-1", **more: Any) -> Json:
    whole = {"state": "completed", "execution_id": execution_id, "kickoff_id": execution_id, "output": "A report."}
    return {**whole, "usage": {"total_tokens": tokens}, **more}


def approval(completed: Any = None, **more: Any) -> CrewUsageApprovalOperator:
    given = record() if completed is None else completed
    return CrewUsageApprovalOperator(task_id="allowed", completed=given, **{"max_total_tokens": 1000, **more})


def said(option: str) -> Json:
    user = {"id": "ann", "name": "Ann"}
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    return {"chosen_options": [option], "params_input": {}, "responded_at": now, "responded_by_user": user}


@pytest.fixture
def kwargs(context: Json, supervisor: Supervisor) -> Json:
    return parked(lambda: approval().execute(context))


@pytest.mark.parametrize("usage", [0, 1, 1000, 999.5])
def test_an_execution_within_the_limit_goes_on(context: Json, supervisor: Supervisor, usage: Any) -> None:
    assert approval(record(usage)).execute(context) == record(usage)
    assert supervisor.asked == []


@pytest.mark.parametrize("odd", ["e" * 101, "a  b"], ids=["long", "spaces"])
def test_an_id_that_is_shown_differently_can_be_asked_about(context: Json, supervisor: Supervisor, odd: str) -> None:
    assert parked(lambda: approval(record(execution_id=odd)).execute(context))["shown"]["execution_id"] == odd
    assert len(supervisor.asked) == 1


@pytest.mark.parametrize("usage", [1, 1500])
def test_the_tasks_tab_and_link_are_about_the_execution(
    context: Json, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, usage: int
) -> None:
    connection = {"conn_type": "crew", "host": "https://crew.example.com", "password": "a-token"}
    monkeypatch.setenv("AIRFLOW_CONN_CREW_METERED", json.dumps(connection))
    task = approval(record(usage, view="/view?id=k-1"), crew_conn_id="crew_metered")
    with suppress(*TaskParked):
        task.execute(context)
    pushed = context["ti"].pushed
    assert pushed["crew_execution_url"] == "https://crew.example.com/view?id=k-1"
    ids = {"execution_id": "k-1", "kickoff_id": "k-1"}
    assert pushed["crew_execution"] == {**ids, "crew_conn_id": "crew_metered", "view": "/view?id=k-1"}


@pytest.mark.row("A32")
def test_an_empty_approver_list_is_refused_at_parse_time() -> None:
    with pytest.raises(ValueError, match="assigned_users names nobody"):
        approval(assigned_users=[])


class OfTemplate(CrewUsageApprovalOperator):
    template_fields = (*CrewUsageApprovalOperator.template_fields, "assigned_users")


@pytest.mark.row("A32")
@pytest.mark.parametrize("rendered", [[], "", [""], [{"id": ""}]], ids=str)
def test_an_empty_approver_list_is_refused_at_render_time(context: Json, supervisor: Supervisor, rendered: Any) -> None:
    task = OfTemplate(task_id="allowed", completed=record(), max_total_tokens=1000, assigned_users=["ann"])
    task.assigned_users = rendered
    with pytest.raises(CrewTaskFailed, match=r"assigned_users .*Nobody was asked, and nothing was sent"):
        task.execute(context)
    assert supervisor.asked == []


UNREPORTED = [None, {}, {"total_tokens": None}, {"total_tokens": "many"}, {"total_tokens": float("nan")}, "1500", 7]
UNREPORTED.append({"total_tokens": 10**400})


@pytest.mark.row("N30")
@pytest.mark.parametrize("usage", UNREPORTED, ids=str)
def test_usage_that_is_not_reported_is_a_question(context: Json, supervisor: Supervisor, usage: Any) -> None:
    shown = parked(lambda: approval(record(usage=usage)).execute(context))["shown"]
    [question] = supervisor.asked
    assert question.subject == "A crew's usage is unknown; the limit is 1,000 tokens" + PLACE
    assert "The service does not report how many tokens it used (max_total_tokens is 1000)" in question.body
    assert "this DAG allows 1,000 tokens without asking" in question.body
    assert approval(record(usage=usage)).execute_complete(context, said("approve"), shown=shown) == record(usage=usage)


@pytest.mark.row("N30")
def test_calls_without_figures_are_a_question(context: Json, supervisor: Supervisor) -> None:
    parked(lambda: approval(record(usage={"total_tokens": 0, "uncounted_calls": 2})).execute(context))
    assert "(max_total_tokens is 1000; 2 model calls reported no usage)" in supervisor.asked[0].body


def test_the_form_shows_the_figures_that_passed_the_limit(context: Json, supervisor: Supervisor) -> None:
    continued = {"total_tokens": 600, "chain_usage": {"total_tokens": 1_200}}
    parked(lambda: approval(record(usage=continued)).execute(context))
    [question] = supervisor.asked
    assert question.subject.startswith("A crew used 1,200 tokens; the limit is 1,000")


@pytest.mark.row("N30")
def test_unreported_usage_fails_or_is_ignored_as_the_dag_says(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(CrewTaskFailed, match=r"For execution k-1, the service did not .*on_unknown_usage='ignore'"):
        approval(record(None), on_unknown_usage="fail").execute(context)
    assert approval(record(None), on_unknown_usage="ignore").execute(context) == record(None)
    assert supervisor.asked == []


@pytest.mark.row("N30")
@pytest.mark.parametrize(
    ("used", "subject", "said"),
    [
        ({"cost_usd": 0.75}, "A crew used 500 tokens and 0.75 USD; the limit is 0.5 USD", "and 0.75 USD**"),
        ({"cost_usd": None}, "A crew's usage is unknown; the limit is 0.5 USD", "cost (max_cost is 0.5)"),
        (
            {"cost_usd": None, "by_model": {"new`s": {"cost_usd": None}, "old": {"cost_usd": 0.25}}},
            "A crew's usage is unknown; the limit is 0.5 USD",
            "It used **500 tokens and at least 0.25 USD**. The service does not report what it cost (max_cost is 0.5; "
            "cost unknown for `new's`)",
        ),
        (
            {"by_model": {"new": {"cost_usd": None}, "old": {"cost_usd": 0.75}}},
            "A crew used 500 tokens and at least 0.75 USD; the limit is 0.5 USD",
            "cost unknown for `new`",
        ),
    ],
)
def test_a_higher_or_unknown_cost_is_a_question(
    context: Json, supervisor: Supervisor, used: Json, subject: str, said: str
) -> None:
    usage = {"total_tokens": 500, **used}
    parked(lambda: approval(record(usage=usage), max_total_tokens=None, max_cost=0.5).execute(context))
    [question] = supervisor.asked
    assert question.subject == subject + PLACE
    assert said in question.body


@pytest.mark.row("N30")
def test_an_invalid_on_unknown_usage_is_refused_at_parse_time() -> None:
    with pytest.raises(CrewInvalidInput, match="on_unknown_usage must be 'ask' or 'fail' or 'ignore', not 'skip'"):
        approval(on_unknown_usage="skip")


def test_more_tokens_are_a_question(context: Json, supervisor: Supervisor) -> None:
    told: list[Any] = []
    with pytest.raises(TaskParked) as parked:
        approval(notifiers=[told.append], response_timeout=3600, assigned_users=["ann"]).execute(context)
    [question] = supervisor.asked
    assert question.subject == "A crew used 1,500 tokens; the limit is 1,000" + PLACE
    assert "Execution `k-1` has completed" in question.body
    assert "It used **1,500 tokens**, and this DAG allows 1,000 without asking" in question.body
    assert question.options == ["approve", "reject"]
    assert [user.id for user in question.assigned_users] == ["ann"]
    assert told == [context]
    assert timedelta(minutes=59) < time_left(parked.value) <= timedelta(hours=1)


@pytest.mark.parametrize("given", [record(), str(record())], ids=["a record", "the text of one"])
def test_an_approval_hands_the_record_on(context: Json, kwargs: Json, given: Any) -> None:
    assert approval(given).execute_complete(context, said("approve"), **kwargs) == record()


def test_a_rejection_skips_or_fails_for_good(context: Json, kwargs: Json) -> None:
    with pytest.raises(AirflowSkipException, match="Ann chose to reject the output of execution k-1"):
        approval().execute_complete(context, said("reject"), **kwargs)
    with pytest.raises(CrewTaskFailed, match="chose to reject"):
        approval(fail_on_reject=True).execute_complete(context, said("reject"), **kwargs)


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (record(9_000_000, "k-2"), "now that of execution k-2"),
        (record(output="Another."), "now that of execution k-1"),
        (record(output=None, output_path="s3://x"), "now that of execution k-1"),
        ("None", "now gone"),
    ],
)
def test_the_approval_of_one_execution_hands_no_other_one_on(context: Json, kwargs: Json, now: Any, what: str) -> None:
    with pytest.raises(CrewTaskFailed, match=f"{what}.*Nothing is passed on; start a new DAG run"):
        approval(now).execute_complete(context, said("approve"), **kwargs)


@pytest.mark.usefixtures("a_form_for_the_task")
def test_another_executions_question_does_not_count_for_this_one(context: Json, kwargs: Json) -> None:
    with pytest.raises(CrewTaskFailed, match=r"about another execution.*Start a new DAG run"):
        approval(record(execution_id="k-2")).execute(context)


def test_a_retry_looks_for_the_answer_without_removing_it(context: Json, supervisor: Supervisor, kwargs: Json) -> None:
    context["ti"].try_number, context["ti"].max_tries = 2, 2
    with pytest.raises(TaskDeferred) as looks:
        approval().execute(context)
    assert len(supervisor.asked) == 1
    assert approval().execute_complete(context, said("approve"), **looks.value.kwargs) == record()


@pytest.mark.row("A41")
@pytest.mark.parametrize("edited", [{"max_total_tokens": 9_000}, {"max_total_tokens": None, "max_cost": 9}], ids=str)
def test_a_limit_raised_while_a_person_is_asked_decides_nothing(
    context: Json, supervisor: Supervisor, kwargs: Json, edited: Json
) -> None:
    context["ti"].try_number, context["ti"].max_tries = 2, 2
    with pytest.raises(TaskDeferred) as looks:
        approval(on_unknown_usage="ignore", **edited).execute(context)
    with pytest.raises(AirflowSkipException, match="Ann chose to reject"):
        approval(**edited).execute_complete(context, said("reject"), **looks.value.kwargs)


def test_a_notifier_that_fails_leaves_the_question_open(context: Json, supervisor: Supervisor) -> None:
    def fails(_: Any) -> None:
        raise OSError("no mail today")

    assert parked(lambda: approval(notifiers=[fails]).execute(context))["shown"]["execution_id"] == "k-1"


def test_an_invalid_answer_is_asked_again_with_the_reason(context: Json, supervisor: Supervisor, kwargs: Json) -> None:
    kwargs = parked(lambda: approval().execute_complete(context, said("maybe"), **kwargs))
    assert "The last answer by `Ann` was not accepted because it chose `maybe`" in supervisor.asked[1].body
    assert approval().execute_complete(context, said("approve"), **kwargs) == record()


def test_execution_timeout_is_no_deadline_for_the_person() -> None:
    task = approval(execution_timeout=timedelta(minutes=5))
    assert (task.execution_timeout, task.response_timeout) == (timedelta(minutes=5), None)


def test_a_default_that_the_form_no_longer_has_decides_nothing(
    context: Json, supervisor: Supervisor, kwargs: Json
) -> None:
    """Before Airflow 3.4, a form and its first default outlive a clear."""
    by_default = {**said("approve"), "responded_by_user": None, "timedout": True}
    again = parked(lambda: approval().execute_complete(context, by_default, **kwargs))  # from before the question
    assert (len(supervisor.asked), again["shown"]) == (2, kwargs["shown"])
    now = {**by_default, "responded_at": datetime.now(UTC)}
    with pytest.raises(CrewTaskFailed, match="Nobody decided"):
        approval().execute_complete(context, now, **kwargs)


def test_the_deadline_fails_for_good(context: Json, kwargs: Json) -> None:
    late = {"error": "too late", "error_type": "timeout"}
    with pytest.raises(CrewTaskFailed, match="Nobody decided within 1:00:00"):
        approval(response_timeout=3600).execute_complete(context, late, **kwargs)


@pytest.mark.parametrize(
    ("completed", "problem"),
    [(record(state="pending"), "in state 'pending', not completed"), ("text", "must be a record")],
)
def test_what_is_no_completed_record_fails_before_anybody_is_asked(
    context: Json, supervisor: Supervisor, completed: Any, problem: str
) -> None:
    with pytest.raises(AirflowFailException, match=problem):
        approval(completed).execute(context)
    assert supervisor.asked == []


@pytest.mark.parametrize("most", [0, -1, True, "1000", None])
def test_a_non_numeric_limit_is_refused_at_parse_time(most: Any) -> None:
    with pytest.raises(CrewInvalidInput, match="max_total_tokens must be an integer"):
        CrewUsageApprovalOperator(task_id="allowed", completed=record(), max_total_tokens=most)


@pytest.mark.parametrize("wrong", [{"response_timeout": "soon"}, {"assigned_users": [7]}], ids=str)
def test_a_wrong_time_or_user_is_refused_at_parse_time(wrong: Json) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        approval(**wrong)


def test_multiple_choices_are_refused_at_parse_time() -> None:
    with pytest.raises(ValueError, match=r"^multiple is not supported: a person makes one choice$"):
        approval(multiple=True)


# --- records of the real crew service ---


def _without_usage(forward: Forward, random: Random) -> Reply:
    whole = forward()
    kept = {name: text for name, text in whole.headers.items() if name.lower() != USAGE.lower()}
    return Reply(status=whole.status, body=whole.body, headers=kept)


@pytest.fixture
def completed_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Json]]:
    """Return the record of an execution whose tasks used these models, 500,000 tokens each."""
    prices = Prices({"cheap": Price(input=1, cached=1, output=2)})
    with ExitStack() as stack:

        def completed_by(*models: str, faults: tuple[Fault, ...] = ()) -> Json:
            tasks = [{"id": f"task_{model}", "tokens": 500_000, "model": model, "output": "x"} for model in models]
            service = stack.enter_context(running_service(scenario={"tasks": tasks}, prices=prices))
            proxy = stack.enter_context(FaultProxy(service.url, seed=1, rate=1.0, faults=faults))
            connection = {"conn_type": "crew", "host": proxy.url, "password": service.token}
            monkeypatch.setenv("AIRFLOW_CONN_CREW_DEFAULT", json.dumps(connection))
            hook = CrewHook()
            kickoff_id = hook.kickoff({})
            wait_until(lambda: hook.get_status(kickoff_id).state == "completed", "the execution to be completed")
            return hook.get_status(kickoff_id).record()

        yield completed_by


@pytest.mark.waits
@pytest.mark.row("N30")
def test_a_costly_execution_of_the_service_is_a_question(
    context: Json, supervisor: Supervisor, completed_by: Callable[..., Json]
) -> None:
    record = completed_by("cheap")
    assert approval(record, max_total_tokens=500_000, max_cost=1).execute(context) == record
    parked(lambda: approval(record, max_total_tokens=10, max_cost=0.5).execute(context))
    [question] = supervisor.asked
    assert question.subject == "A crew used 500,000 tokens and 1.0 USD; the limit is 10 tokens and 0.5 USD" + PLACE


@pytest.mark.waits
@pytest.mark.row("N30")
def test_usage_removed_by_a_proxy_is_asked_about_or_fails(
    context: Json, supervisor: Supervisor, completed_by: Callable[..., Json]
) -> None:
    record = completed_by("cheap", faults=(Fault("N30", "usage removed", POLL, _without_usage),))
    for limit in ({"max_total_tokens": 10}, {"max_total_tokens": None, "max_cost": 0.5}):
        with pytest.raises(CrewTaskFailed, match=r"For execution .*, the service did not report .* Make the service"):
            approval(record, on_unknown_usage="fail", **limit).execute(context)
    parked(lambda: approval(record, max_total_tokens=10).execute(context))
    said = "A crew's usage is unknown; the limit is 10 tokens"
    assert [each.subject for each in supervisor.asked] == [said + PLACE]


@pytest.mark.waits
@pytest.mark.row("N30")
def test_the_person_is_told_which_model_has_no_price(
    context: Json, supervisor: Supervisor, completed_by: Callable[..., Json]
) -> None:
    record = completed_by("cheap", "new")
    with pytest.raises(CrewTaskFailed, match="cost unknown for 'new'"):
        approval(record, on_unknown_usage="fail", max_total_tokens=None, max_cost=5).execute(context)
    parked(lambda: approval(record, max_total_tokens=None, max_cost=5).execute(context))
    [question] = supervisor.asked
    assert "It used **1,000,000 tokens and at least 1.0 USD**" in question.body
    assert "cost unknown for `new`" in question.body
