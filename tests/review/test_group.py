"""The group of kickoff, rounds and result, as the scheduler sees it; on real Airflow: tests/system."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowSkipException, Asset, BaseNotifier, TaskGroup, task_group
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult
from airflow_stand_ins import PENDING, Supervisor, TaskParked

from airflow_crew_provider.api.answers import FIELDS
from airflow_crew_provider.compat.version import has_loops
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.task_groups.crew import CrewResultOperator, crew_with_review, until_completed
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

REVIEW = "crew.round.review"
COMPLETED = {**PENDING, "state": "completed", "crew_task_id": None, "output": "Done."}
OLD = {**COMPLETED, "kickoff_id": "execution-0", "execution_id": "execution-0", "output": "Of before the clear."}


class Noted(BaseNotifier):
    """Notes down whom it notified."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts: list[Any] = []

    def notify(self, context: Any) -> None:
        self.contexts.append(context)


@dataclass
class StatesOnly:
    """A supervisor that knows the states of tasks, by run."""

    states: dict[str, dict[str, str]]

    def send(self, msg: GetTaskStates) -> TaskStatesResult:
        of_run = self.states[msg.run_ids[0]] if msg.run_ids else {}
        wanted = [name if msg.map_index in (None, -1) else f"{name}_{msg.map_index}" for name in msg.task_ids or ()]
        return TaskStatesResult(task_states={"run": {name: of_run[name] for name in wanted}})


def group(**arguments: Any) -> DAG:
    with DAG("group", schedule=None) as dag:
        crew_with_review(group_id="crew", inputs={"topic": "tea"}, **arguments)
    return dag


def test_the_result_is_the_only_leaf_and_rounds_are_groups() -> None:
    dag = group(max_rounds=2)
    assert [task.task_id for task in dag.leaves] == ["crew.result"]
    assert set(dag.task_ids) == {
        *("crew.kickoff", "crew.wait", "crew.result"),
        *(f"crew.round_{number}.{task}" for number in (1, 2) for task in ("review", "resume", "wait")),
    }


def test_webhooks_are_given_at_the_kickoff_and_each_resume() -> None:
    webhooks = {"crew": "https://hooks.example.com/crew"}
    dag = group(webhooks=webhooks, max_rounds=2)
    given = [dag.get_task(f"crew.{task}").webhooks for task in ("kickoff", "round_1.resume", "round_2.resume")]
    assert given == [webhooks] * 3


def test_only_a_resume_with_a_following_round_hands_drafts_on() -> None:
    dag = group(max_rounds=2)
    assert [dag.get_task(f"crew.round_{number}.resume").has_next_round for number in (1, 2)] == [True, False]


def test_policies_reach_every_round_unless_the_review_has_its_own() -> None:
    def rule(record: Any) -> None:
        """Approve nothing."""

    dag = group(on_tool_timeout="fail", auto_approve=rule)
    given = [dag.get_task(f"crew.round_{number}.review") for number in (1, 2, 3)]
    assert [(each.on_tool_timeout, each.auto_approve) for each in given] == [("fail", rule)] * 3
    own = group(on_tool_timeout="fail", review={"on_tool_timeout": "deny"}).get_task("crew.round_1.review")
    assert (own.on_tool_timeout, own.auto_approve) == ("deny", None)


def test_arguments_of_the_review_and_the_connection_reach_every_round() -> None:
    dag = group(crew_conn_id="other", review={"response_timeout": timedelta(days=1), "on_timeout": "approve"})
    for number in (1, 2, 3):
        review = dag.get_task(f"crew.round_{number}.review")
        assert (review.round_number, review.max_rounds, review.crew_conn_id) == (number, 3, "other")
        assert (review.response_timeout, review.defaults) == (timedelta(days=1), ["approve"])


def test_no_round_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        group(max_rounds=0)


def test_a_fail_fast_dag_is_refused_with_advice() -> None:
    with (
        DAG("d", schedule=None, fail_fast=True),
        pytest.raises(ValueError, match=r"fail_fast=True: .* Remove fail_fast, or use"),
    ):
        crew_with_review(inputs={"topic": "tea"})


def test_the_result_is_the_record_of_the_last_needed_wait(context: dict[str, Any]) -> None:
    result = CrewResultOperator(task_id="result", records=[PENDING, COMPLETED, None])
    assert result.execute(context) == COMPLETED


@pytest.mark.row("A12")
@pytest.mark.parametrize("fewer", [[COMPLETED, PENDING, OLD], [PENDING, COMPLETED, OLD], [COMPLETED, None, OLD]])
def test_records_that_an_earlier_execution_left_behind_do_not_count(context: dict[str, Any], fewer: list[Any]) -> None:
    result = CrewResultOperator(task_id="result", execution_id="execution-1", records=fewer)
    assert result.execute(context) == COMPLETED


@pytest.mark.row("A12")
def test_no_result_exists_without_a_record_of_the_new_execution(context: dict[str, Any]) -> None:
    result = CrewResultOperator(task_id="result", execution_id="execution-1", records=[OLD, OLD])
    with pytest.raises(CrewTaskFailed, match="No wait has a record of execution execution-1"):
        result.execute(context)


@pytest.mark.row("A12")
@pytest.mark.parametrize(("kickoff", "index"), [("skipped", -1), ("skipped", 3), ("success", -1), ("success", 3)])
def test_a_skipped_group_has_no_result_from_an_earlier_execution(
    context: dict[str, Any], monkeypatch: pytest.MonkeyPatch, kickoff: str, index: int
) -> None:
    result = group(max_rounds=1).get_task("crew.result")
    result.records, result.execution_id = [COMPLETED, None], "execution-1"
    context["ti"].map_index = index
    suffix = "" if index < 0 else f"_{index}"
    states = {f"{task_id}{suffix}": "skipped" for task_id in result.upstream_task_ids}
    states[f"crew.kickoff{suffix}"] = kickoff
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", StatesOnly({"run": states}), raising=False)
    if kickoff == "skipped":
        with pytest.raises(AirflowSkipException, match="Nothing was started"):
            result.execute(context)
    else:
        assert result.execute(context) == COMPLETED


def test_a_mapped_groups_result_waits_for_its_own_item_alone() -> None:
    # Airflow holds a rule with "min one success" against the whole group while the task is not expanded.
    assert group().get_task("crew.result").trigger_rule == "none_failed"


@pytest.mark.row("A12")
def test_the_result_is_bound_to_the_kickoffs_returned_id() -> None:
    dag = group(max_rounds=2)
    assert dag.get_task("crew.result").execution_id.operator is dag.get_task("crew.kickoff")


@pytest.mark.row("A18")
def test_rounds_that_are_not_needed_are_skipped(context: dict[str, Any]) -> None:
    for number in (1, 2, 3):
        review = group().get_task(f"crew.round_{number}.review")
        review.pending = COMPLETED
        with pytest.raises(AirflowSkipException):
            review.execute(context)


def test_a_question_after_the_last_round_fails_with_its_fate(context: dict[str, Any]) -> None:
    result = CrewResultOperator(task_id="result", records=[PENDING, {**PENDING, "output": "Draft 2."}])
    with pytest.raises(CrewTaskFailed, match=r"execution-1 is waiting.*stays paused.*raise max_rounds"):
        result.execute(context)


def test_notifiers_are_called_for_each_question(context: dict[str, Any], supervisor: Supervisor) -> None:
    notifier = Noted()
    review = CrewReviewOperator(task_id="review", pending=PENDING, notifiers=notifier)
    with pytest.raises(TaskParked):
        review.execute(context)
    assert len(notifier.contexts) == 1


def test_only_the_result_task_has_the_outlets() -> None:
    text = Asset("x-texts://tea")
    with DAG("dag") as dag:
        crew_with_review(inputs={}, outlets=[text])
    assert {task.task_id: task.outlets for task in dag.tasks if task.outlets} == {"crew.result": [text]}


@pytest.mark.row("A25")
@pytest.mark.parametrize(
    ("default_args", "retries", "delays"),
    [({}, 2, (5, 10)), ({"retries": 0}, 2, (5, 10)), ({"retries": 9, "retry_delay": timedelta(seconds=1)}, 9, (1, 1))],
    ids=str,
)
def test_tasks_have_two_retries_unless_the_dag_says_otherwise(
    default_args: dict[str, Any], retries: int, delays: tuple[int, int]
) -> None:
    with DAG("d", start_date=datetime(2026, 1, 1, tzinfo=UTC), default_args=default_args) as dag, TaskGroup("outer"):
        crew_with_review(group_id="crew", inputs={}, max_rounds=1)
    soon, later = delays
    after = {"kickoff": soon, "wait": soon, "round_1.resume": soon, "round_1.review": later, "result": soon}
    for task_id, delay in after.items():
        task = dag.get_task(f"outer.crew.{task_id}")
        assert (task.retries, task.retry_delay) == (retries, timedelta(seconds=delay)), task_id


def test_a_groups_kickoff_never_waits_whatever_the_default_args_say() -> None:
    waits = {"wait_for_completion": True, "on_unknown_outcome": "retry"}
    with DAG("d", start_date=datetime(2026, 1, 1, tzinfo=UTC), default_args=waits) as dag:
        crew_with_review(inputs={})
    kickoff: Any = dag.get_task("crew.kickoff")
    assert (kickoff.wait_for_completion, kickoff.on_unknown_outcome) == (False, "retry")


OF_OTHER_TASKS = {
    **{"trigger_rule": "none_failed", "retries": 4, "wait_for_completion": True, "do_xcom_push": False},
    **{"output_schema": {"type": "object"}, "max_total_tokens": 5, "output_to": "/tmp/other"},
    **{"wait_past_pending": True, "multiple_outputs": False, "skip_completed": False, "has_next_round": True},
}


def rules_of(dag: DAG) -> dict[str, tuple[str, bool]]:
    return {
        task.task_id: (getattr(task.trigger_rule, "value", task.trigger_rule), task.do_xcom_push) for task in dag.tasks
    }


@pytest.mark.parametrize(
    ("given", "connection"), [({}, "crew_prod"), ({"crew_conn_id": "crew_default"}, "crew_default")], ids=str
)
def test_a_default_args_connection_is_used_unless_one_is_given(given: dict[str, str], connection: str) -> None:
    with DAG("d", schedule=None, default_args={"crew_conn_id": "crew_prod"}) as dag:
        crew_with_review(inputs={}, **given)
    assert {task.crew_conn_id for task in dag.tasks if hasattr(task, "crew_conn_id")} == {connection}


@pytest.mark.parametrize("given", [0, -1, "3", None, 1.5], ids=str)
def test_a_number_of_rounds_is_a_positive_integer(given: Any) -> None:
    with pytest.raises(ValueError, match=f"max_rounds must be an integer of at least 1, not {given!r}"):
        group(max_rounds=given)


@pytest.mark.row("A48")
@pytest.mark.parametrize("loop", [False, pytest.param(True, marks=pytest.mark.since_airflow("3.4"))])
def test_default_args_of_the_dag_leave_group_rules_unchanged(loop: bool) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG("d", start_date=start) as plain:
        crew_with_review(inputs={}, loop=loop)
    with DAG("d", start_date=start, default_args=OF_OTHER_TASKS) as dag, TaskGroup("outer"):
        crew_with_review(inputs={}, loop=loop)
    expected = {f"outer.{task_id}": rules for task_id, rules in rules_of(plain).items()}
    # Whether the crew starts at all is for the DAG to say.
    assert rules_of(dag) == {**expected, "outer.crew.kickoff": ("none_failed", True)}
    kickoff: Any = dag.get_task("outer.crew.kickoff")
    assert (kickoff.wait_for_completion, kickoff.output_rules.names) == (False, [])
    for task in dag.tasks:
        assert task.retries == 4
        if task.task_id.endswith("wait"):
            assert (task.wait_past_pending, task.output_rules.names) == (False, [])
        if task.task_id.endswith("review"):
            assert task.skip_completed is True


@pytest.mark.row("A48")
@pytest.mark.parametrize("loop", [False, pytest.param(True, marks=pytest.mark.since_airflow("3.4"))])
def test_default_args_for_other_tasks_keys_or_answers_are_ignored(loop: bool) -> None:
    of_others = {"multiple_outputs": True, **dict.fromkeys(FIELDS, "of another task")}
    with DAG("d", start_date=datetime(2026, 1, 1, tzinfo=UTC), default_args=of_others) as dag:
        crew_with_review(inputs={}, loop=loop)
    for task in dag.tasks:
        assert not task.multiple_outputs, task.task_id
        if task.task_id.endswith("resume"):
            assert [getattr(task, name) for name in FIELDS] == [None] * len(FIELDS)
    assert dag.get_task("crew.wait").execution_id is None  # type: ignore[attr-defined]


@pytest.mark.skipif(has_loops(), reason="this Airflow has Task Loops")
@pytest.mark.row("A28")
def test_loops_are_refused_at_parse_time_before_airflow_3_4() -> None:
    with pytest.raises(ValueError, match=r"loop=True needs Airflow 3\.4 or newer.*separate tasks for each round"):
        group(loop=True)


@pytest.mark.since_airflow("3.4")
@pytest.mark.row("A28")
@pytest.mark.parametrize("around", ["a mapped group", "another loop"])
def test_nested_and_mapped_loops_are_refused_at_parse_time(around: str) -> None:
    @task_group
    def outer(topic: str = "tea") -> None:
        crew_with_review(inputs={"topic": topic}, loop=True)

    parse = {
        "a mapped group": lambda: outer.expand(topic=["tea", "coffee"]),
        "another loop": lambda: outer.loop(max_iterations=2),
    }[around]
    refused = "Airflow does not support Task Loops inside a mapped task group, or inside another loop"
    with DAG("outer", schedule=None), pytest.raises(ValueError, match=refused):
        parse()


@pytest.mark.since_airflow("3.4")
@pytest.mark.row("A28")
def test_a_loop_has_one_rounds_tasks_and_a_deciding_task() -> None:
    dag = group(loop=True, max_rounds=5, review={"response_timeout": timedelta(days=1)}, webhooks="inbox")
    names = ("kickoff", "wait", "round.review", "round.resume", "round.wait", "round.until_completed", "result")
    assert set(dag.task_ids) == {f"crew.{name}" for name in names}
    result, review = dag.get_task("crew.result"), dag.get_task("crew.round.review")
    assert result.upstream_task_ids == {"crew.kickoff", "crew.wait", "crew.round.until_completed"}
    assert (review.max_rounds, review.response_timeout) == (5, timedelta(days=1))
    assert dag.get_task("crew.round.resume").webhooks == "inbox"
    assert {dag.get_task(f"crew.{name}").retries for name in names} == {2}
    shown = [dag.get_task(f"crew.round.{name}").operator_name for name in ("review", "resume")]
    assert shown == ["CrewReviewOperator", "CrewResumeOperator"]


@pytest.mark.since_airflow("3.4")
@pytest.mark.row("A28")
@pytest.mark.parametrize(
    ("index", "record", "review", "decided"),
    [
        (0, PENDING, {"is_approve": False, "human_feedback": "secret"}, (False, "round 1: revise")),
        (1, COMPLETED, {"is_approve": True, "reviewer": {"name": "secret"}}, (True, "round 2: approve")),
        (2, PENDING, {"is_approve": True}, (True, "round 3: approve")),
        (0, None, {"is_approve": None, "outcome": "secret"}, (False, "round 1: answered")),
        (0, PENDING, {"is_approve": False, "outcome": "deny", "ask": {"kind": "tool"}}, (False, "round 1: deny")),
        (0, PENDING, None, (False, "round 1: answered")),
    ],
)
def test_an_iterations_reason_is_only_its_round_and_decision(
    index: int, record: Any, review: Any, decided: Any
) -> None:
    ti = SimpleNamespace(task_id="crew.round.until_completed", xcom_pull=lambda task_ids: {REVIEW: review}[task_ids])
    decision = until_completed(SimpleNamespace(index=index, max_iterations=3, result=record), ti)
    assert (decision.stop, decision.reason) == decided


def test_the_result_reads_the_records_of_all_iterations(context: dict[str, Any]) -> None:
    result = CrewResultOperator(task_id="result", execution_id="execution-1", records=[PENDING, [PENDING, COMPLETED]])
    assert result.execute(context) == COMPLETED
