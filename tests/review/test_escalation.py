"""Nobody answers: others are told, and may answer too; the question and its draft stay the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow_stand_ins import PENDING, Supervisor, TaskParked, time_left

from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.review import question
from airflow_crew_provider.task.store import record_of
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

Json = dict[str, Any]
TIMEOUT = {"error": "The timeout has passed", "error_type": "timeout"}
HOUR = timedelta(hours=1)
STATE = "crew_review"


class Told:
    """A notifier that counts."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, context: Any) -> None:
        self.times += 1


def review_of(**arguments: Any) -> CrewReviewOperator:
    arguments.setdefault("assigned_users", ["ann"])
    return CrewReviewOperator(task_id="review", retries=0, **{"pending": PENDING, **arguments})


def said(who: str, option: str = "approve", feedback: str = "", at: datetime | None = None) -> Json:
    answer = {"chosen_options": [option], "params_input": {"human_feedback": feedback}}
    return {**answer, "responded_at": at or datetime.now(UTC), "responded_by_user": {"id": who, "name": who}}


def parked(run: Any) -> Any:
    with pytest.raises(TaskParked) as waits:
        run()
    return waits.value


def later(context: Json, passed: timedelta) -> None:
    """Let time pass: the question is open for longer by the record."""
    memory = record_of(context).part(STATE, ())
    record = memory.recall()
    for name in ("since", "until"):
        if record.get(name):
            record[name] = (datetime.fromisoformat(record[name]) - passed).isoformat()
    memory.keep(record)


def escalated(operator: CrewReviewOperator, context: Json, kwargs: Json) -> Any:
    """Bring the task back for a step as Airflow does, and let its look for an answer end without one."""
    with pytest.raises(TaskDeferred) as looks:
        operator.execute_complete(context, TIMEOUT, **kwargs)
    assert "step" not in looks.value.kwargs
    return parked(lambda: operator.resume_execution("__fail__", {"error": "Trigger timeout"}, context))


def test_until_the_first_step_the_task_waits_without_a_default(context: Json, supervisor: Supervisor) -> None:
    operator = review_of(escalate=[(HOUR, "boss"), (2 * HOUR, Told())], response_timeout=3 * HOUR, on_timeout="approve")
    waits = parked(lambda: operator.execute(context))
    assert timedelta(minutes=59) < time_left(waits) <= HOUR
    assert waits.kwargs["step"] is True
    assert supervisor.asked[0].defaults is None
    assert [user.id for user in supervisor.asked[0].assigned_users] == ["boss", "ann"]
    assert "UTC on, boss may also answer." in supervisor.asked[0].body


def test_each_step_is_notified_once_and_the_question_stays_unchanged(context: Json, supervisor: Supervisor) -> None:
    first, own = Told(), Told()
    operator = review_of(escalate=[(3600, first), ("7200", ["boss"])], notifiers=[own], response_timeout=3 * HOUR)
    waits = parked(lambda: operator.execute(context))
    until = waits.kwargs["until"]
    later(context, HOUR)
    waits = escalated(operator, context, {**waits.kwargs})
    assert (first.times, own.times) == (1, 1)
    assert timedelta(minutes=59) < time_left(waits) <= HOUR
    later(context, HOUR)
    waits = escalated(operator, context, {**waits.kwargs})
    assert (first.times, own.times) == (1, 2), "a step of users only calls the review's own notifiers"
    assert "step" not in waits.kwargs, "the rest is the deadline"
    assert len(supervisor.asked) == 1
    assert waits.kwargs["shown"]["output_sha256"] == output_sha256("Draft 1.")
    assert datetime.fromisoformat(waits.kwargs["until"]) < datetime.fromisoformat(until)


class Clock(datetime):
    """The time, as late as the test says."""

    passed = timedelta(0)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + cls.passed


def test_a_step_due_while_notifying_an_earlier_one_is_next(
    context: Json, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question, "datetime", Clock)
    boss = Told()
    operator = review_of(
        escalate=[(HOUR, lambda context: monkeypatch.setattr(Clock, "passed", 3 * HOUR)), (7200, boss)]
    )
    waits = parked(lambda: operator.execute(context))
    monkeypatch.setattr(Clock, "passed", HOUR)
    waits = escalated(operator, context, {**waits.kwargs})
    assert (waits.kwargs["step"], boss.times) == (True, 0)
    escalated(operator, context, {**waits.kwargs})
    assert boss.times == 1


@pytest.mark.row("A23")
@pytest.mark.parametrize(
    ("one", "other"),
    [([], []), (["ann boss"], ["ann", "boss"])],
    ids=["of notifiers", "of users whose ids read alike"],
)
def test_two_simultaneous_steps_are_each_notified_once_over_all_tries(
    context: Json, supervisor: Supervisor, one: list[str], other: list[str]
) -> None:
    steps = [Told(), Told()]
    operator = review_of(escalate=[(HOUR, [*one, steps[0]]), (HOUR, [*other, steps[1]])])
    waits = parked(lambda: operator.execute(context))
    later(context, HOUR)
    waits = escalated(operator, context, {**waits.kwargs})
    assert [step.times for step in steps] == [1, 1]
    escalated(operator, context, {**waits.kwargs, "step": True})
    assert [step.times for step in steps] == [1, 1]


@pytest.mark.row("A23")
def test_the_second_simultaneous_step_is_notified_after_an_upgrade(context: Json, supervisor: Supervisor) -> None:
    steps = [Told(), Told()]
    operator = review_of(escalate=[(HOUR, steps[0]), (HOUR, steps[1])])
    waits = parked(lambda: operator.execute(context))
    later(context, HOUR)
    memory = record_of(context).part(STATE, ())
    memory.keep({**memory.recall(), "told": {"3600 Told": "done"}})
    escalated(operator, context, {**waits.kwargs})
    assert [step.times for step in steps] == [0, 1]


def test_a_step_inserted_before_others_during_a_question_is_notified(context: Json, supervisor: Supervisor) -> None:
    chief, boss = Told(), Told()
    waits = parked(lambda: review_of(escalate=[(7200, boss)]).execute(context))
    later(context, 2 * HOUR)
    waits = escalated(review_of(escalate=[(7200, boss)]), context, {**waits.kwargs})
    edited = review_of(escalate=[(3600, ["chief"]), (7200, boss)], notifiers=[chief])
    escalated(edited, context, {**waits.kwargs, "step": True})
    assert (chief.times, boss.times) == (1, 1)


@pytest.mark.parametrize("now", [None, "", {**PENDING, "output": "Draft 2."}], ids=["gone", "empty", "another draft"])
def test_a_step_keeps_the_shown_draft_whatever_the_record_says(context: Json, supervisor: Supervisor, now: Any) -> None:
    told = Told()
    waits = parked(lambda: review_of(escalate=[(HOUR, told)]).execute(context))
    later(context, HOUR)
    waits = escalated(review_of(escalate=[(HOUR, told)], pending=now), context, {**waits.kwargs})
    assert waits.kwargs["shown"]["output_sha256"] == output_sha256("Draft 1.")
    assert (told.times, len(supervisor.asked)) == (1, 1)
    assert "shown" not in record_of(context).part(STATE, ()).recall(), "kept only while an answer is looked for"


def test_an_answer_in_the_same_second_prevents_the_next_escalation(context: Json, supervisor: Supervisor) -> None:
    told = Told()
    operator = review_of(escalate=[(HOUR, ["boss", told])])
    waits = parked(lambda: operator.execute(context))
    later(context, HOUR)
    with pytest.raises(TaskDeferred) as looks:
        operator.execute_complete(context, TIMEOUT, **waits.kwargs)
    review = operator.execute_complete(context, said("ann", "revise", "Shorter."), **looks.value.kwargs)
    assert (review["reviewer"]["id"], review["human_feedback"]) == ("ann", "Shorter.")
    assert (told.times, len(supervisor.asked)) == (0, 1)


def test_a_steps_users_may_answer_only_once_it_is_due(context: Json, supervisor: Supervisor) -> None:
    operator = review_of(escalate=[(HOUR, "boss")])
    waits = parked(lambda: operator.execute(context))
    again = parked(lambda: operator.execute_complete(context, said("boss"), **waits.kwargs))
    assert "`boss` may not answer before" in supervisor.asked[1].body
    later(context, HOUR)
    assert operator.execute_complete(context, said("boss"), **again.kwargs)["reviewer"]["id"] == "boss"


def test_a_retry_keeps_past_notifications_and_the_next_steps_time(context: Json, supervisor: Supervisor) -> None:
    told = Told()
    operator = review_of(escalate=[(HOUR, told), (2 * HOUR, "boss")])
    waits = parked(lambda: operator.execute(context))
    later(context, HOUR)
    escalated(operator, context, {**waits.kwargs})
    context["ti"].try_number = 2
    with pytest.raises(TaskDeferred):
        operator.execute(context)
    waits = parked(lambda: operator.resume_execution("__fail__", {"error": "Trigger timeout"}, context))
    assert told.times == 1
    assert timedelta(minutes=59) < time_left(waits) <= HOUR


def test_a_notifier_of_a_step_that_fails_changes_nothing(context: Json, supervisor: Supervisor) -> None:
    def fails(context: Any) -> None:
        raise RuntimeError("no such channel")

    operator = review_of(escalate=[(HOUR, fails)])
    waits = parked(lambda: operator.execute(context))
    later(context, HOUR)
    assert escalated(operator, context, {**waits.kwargs})


@pytest.mark.parametrize(("policy", "approves"), [("approve", True), ({"revise": "Go on."}, False)])
def test_the_deadline_decides_as_without_escalation(context: Json, policy: Any, approves: bool) -> None:
    operator = review_of(escalate=[(HOUR, "boss")], response_timeout=2 * HOUR, on_timeout=policy)
    waits = parked(lambda: operator.execute(context))
    kwargs = {name: value for name, value in waits.kwargs.items() if name != "step"}
    review = operator.execute_complete(context, TIMEOUT, **kwargs)
    assert (review["is_approve"], review["reviewer"]) == (approves, None)


def test_the_deadline_fails_where_no_policy_is_given(context: Json) -> None:
    operator = review_of(escalate=[(HOUR, "boss")], response_timeout=2 * HOUR)
    waits = parked(lambda: operator.execute(context))
    kwargs = {name: value for name, value in waits.kwargs.items() if name != "step"}
    with pytest.raises(CrewTaskFailed, match=r"Nobody answered within 2:00:00\. Nothing was sent"):
        operator.execute_complete(context, TIMEOUT, **kwargs)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"escalate": [(HOUR, "boss")], "assigned_users": None}, "everybody may answer"),
        ({"escalate": [(HOUR, "boss")], "response_timeout": HOUR}, "at or after response_timeout"),
        ({"escalate": [(HOUR, [])]}, "needs a user or a notifier"),
        ({"escalate": [(0, "boss")]}, "A time in escalate must be a timedelta"),
        ({"escalate": [(None, "boss")]}, "A time in escalate must be a timedelta"),
        ({"escalate": [HOUR]}, "list of pairs"),
        ({"escalate": HOUR}, "list of pairs"),
        ({"escalate": [(HOUR, None)]}, "needs a user or a notifier"),
        ({"escalate": [(HOUR, 7)]}, "assigned_users must be user ids"),
        ({"escalate": [(HOUR, [7])]}, "assigned_users must be user ids"),
    ],
)
def test_what_could_never_happen_is_refused_in_the_dag_file(arguments: Json, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        review_of(**arguments)


def test_those_who_need_no_step_are_told_without_users(context: Json, supervisor: Supervisor) -> None:
    operator = review_of(escalate=[(HOUR, Told())], assigned_users=None)
    waits = parked(lambda: operator.execute(context))
    assert "may also answer" not in supervisor.asked[0].body
    assert operator.execute_complete(context, said("anybody"), **waits.kwargs)["is_approve"] is True


@pytest.mark.row("A32")
@pytest.mark.parametrize("edited", [[(HOUR, "chief")], None], ids=["another step", "no step"])
def test_a_dag_edit_admits_nobody_earlier_than_the_form_says(
    context: Json, supervisor: Supervisor, edited: Any
) -> None:
    waits = parked(lambda: review_of(escalate=[(HOUR, "boss")]).execute(context))
    now_in_dag = review_of(escalate=edited)
    asked_again = parked(lambda: now_in_dag.execute_complete(context, said("boss"), **waits.kwargs))
    assert "may not answer before" in now_in_dag.body
    later(context, HOUR)
    record = now_in_dag.execute_complete(context, said("boss"), **asked_again.kwargs)
    assert (record["is_approve"], record["reviewer"]["id"]) == (True, "boss")


@pytest.mark.row("A32")
def test_whoever_the_form_does_not_name_is_refused(context: Json, supervisor: Supervisor) -> None:
    waits = parked(lambda: review_of(escalate=[(HOUR, "boss")]).execute(context))
    edited = review_of(escalate=[(HOUR, "chief")])
    parked(lambda: edited.execute_complete(context, said("chief"), **waits.kwargs))
    assert "is not among those who may answer" in edited.body
