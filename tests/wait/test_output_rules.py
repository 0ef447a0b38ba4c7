"""`output_schema` and `max_total_tokens` of every task that waits: nothing downstream runs on what breaks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, dag, task
from faults.dialects import LIVE, PENDING_SPEC, SPEC
from faults.server import FaultServer
from simulated_airflow import TaskRun, die_after_recording, run
from waiting_tasks import POLL, completed, in_both_places, kickoff_that_waits, sensor_that_waits

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")
PRICES = {"type": "object", "required": ["total"], "properties": {"total": {"type": "number"}}}
GOOD, BAD = '{"total": 3}', '{"total": "three"}'


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": []})
    server.on("POST /kickoff", {"kickoff_id": "k-1"})


def kickoff(**more: Any) -> CrewKickoffOperator:
    return kickoff_that_waits(**{"output_schema": PRICES, **more})


def sensor(**more: Any) -> CrewStatusSensor:
    return sensor_that_waits(**{"output_schema": PRICES, **more})


@in_both_places
@pytest.mark.parametrize("made", [kickoff, sensor])
def test_an_output_that_matches_is_the_records(server: FaultServer, made: Any, deferrable: bool) -> None:
    server.on(POLL, SPEC.running, completed(GOOD))
    assert run(made(deferrable=deferrable))["output"] == {"total": 3}


@in_both_places
@pytest.mark.parametrize("made", [kickoff, sensor])
def test_a_mismatching_output_fails_the_task_for_good(server: FaultServer, made: Any, deferrable: bool) -> None:
    server.on(POLL, SPEC.running, completed(BAD))
    with pytest.raises(CrewTaskFailed) as failure:
        run(made(deferrable=deferrable))
    message = str(failure.value)
    assert "The output of execution k-1 does not match output_schema" in message
    assert "$.total: 'three' is not of type 'number'" in message
    assert "its output is still available from the service" in message


def test_after_a_resume_the_second_waits_output_is_checked(server: FaultServer) -> None:
    server.on("GET /status/k-2", SPEC.running, completed(BAD))
    with pytest.raises(CrewTaskFailed, match="The output of execution k-2 does not match"):
        run(sensor(kickoff_id="k-2", execution_id="k-1", wait_past_pending=True, deferrable=True))


def test_a_draft_is_not_compared(server: FaultServer) -> None:
    server.on(POLL, PENDING_SPEC)
    assert run(sensor(deferrable=False))["output"] == "the draft"


def test_a_list_becomes_the_output_if_the_schema_wants_one(server: FaultServer) -> None:
    server.on(POLL, completed("```json\n[1, 2]\n```"))
    assert run(sensor(deferrable=False, output_schema={"type": "array"}))["output"] == [1, 2]


def test_an_unimportable_model_fails_before_the_crew_starts(server: FaultServer) -> None:
    with pytest.raises(CrewTaskFailed, match="no_such_module"):
        run(kickoff(output_schema="no_such_module:Model"))
    assert server.requests == []


def test_a_retry_with_an_unimportable_model_names_the_running_execution(
    server: FaultServer,
) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff(deferrable=False))
    with pytest.raises(CrewTaskFailed, match=r"no_such_module.*This try started nothing, but .*k-1"):
        run(kickoff(output_schema="no_such_module:Model"), task_run.retry())


@pytest.mark.parametrize("name", ["output_to", "files_to"])
def test_a_retry_without_usable_storage_names_the_running_execution(server: FaultServer, name: str) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff(deferrable=False))
    with pytest.raises(CrewTryFailed, match=rf"{name} 'nowhere://a/b' cannot be opened: .*nothing, but execution k-1"):
        run(kickoff(**{name: "nowhere://a/b"}), task_run.retry())
    server.on(POLL, completed(GOOD))
    assert run(kickoff(deferrable=False), task_run.retry())["kickoff_id"] == "k-1"
    assert len(server.sent("POST /kickoff")) == 1


@pytest.mark.parametrize("name", ["output_to", "files_to"])
def test_a_sensor_that_cannot_open_its_storage_is_retried(server: FaultServer, name: str) -> None:
    with pytest.raises(CrewTryFailed, match=f"{name} .* cannot be opened: .*Execution k-1 is not affected; a retry of"):
        run(sensor(**{name: "nowhere://a/b"}))
    assert server.requests == []


@pytest.mark.parametrize("rule", [{"output_schema": "no_such_module:Model"}, {"output_to": ""}], ids=str)
def test_a_sensor_with_an_unusable_rule_tells_the_executions_fate(server: FaultServer, rule: Any) -> None:
    operator = sensor()
    for name, rendered in rule.items():
        setattr(operator, name, rendered)
    with pytest.raises(CrewTaskFailed, match="Execution k-1 is not affected; correct the rule and clear this task"):
        run(operator)


@pytest.mark.since_airflow("3.1")
def test_the_group_starts_no_crew_for_an_unimportable_model(server: FaultServer) -> None:
    from airflow_crew_provider.task_groups.crew import crew_with_review

    with DAG("group", schedule=None) as dag:
        crew_with_review(inputs={}, output_schema="no_such_module:Model")
    with pytest.raises(CrewTaskFailed, match=r"no_such_module.*No execution was started"):
        run(dag.get_task("crew.kickoff"))
    assert server.requests == []


def test_a_cleared_kickoff_starts_a_new_execution_after_a_mismatch(server: FaultServer) -> None:
    server.on("POST /kickoff", {"kickoff_id": "k-1"}, {"kickoff_id": "k-2"})
    server.on(POLL, completed(BAD))
    server.on("GET /status/k-2", completed(GOOD))
    task_run = TaskRun()
    with pytest.raises(CrewTaskFailed):
        run(kickoff(deferrable=False), task_run)
    assert run(kickoff(deferrable=False), task_run.clear())["kickoff_id"] == "k-2"


@pytest.mark.parametrize("made", [kickoff, sensor])
def test_a_bad_schema_is_refused_when_the_dag_is_parsed(made: Any) -> None:
    with pytest.raises(ValueError, match="output_schema is not a JSON Schema"):
        made(output_schema={"type": "objekt"})


def test_a_kickoff_that_does_not_wait_cannot_compare() -> None:
    with pytest.raises(ValueError, match="output_schema needs wait_for_completion=True"):
        kickoff(wait_for_completion=False)


def test_mapped_tasks_take_it() -> None:
    with DAG("mapped", schedule=None) as dag:
        options = {"poll_interval": 1, "wait_for_completion": True, "output_schema": PRICES}
        CrewKickoffOperator.partial(task_id="crew", **options).expand(inputs=[{"topic": "tea"}])
    assert dag.get_task("crew").partial_kwargs["output_schema"] == PRICES


def test_a_mapped_task_that_is_unmapped_compares_its_output(server: FaultServer) -> None:
    server.on(POLL, completed(BAD))
    with DAG("mapped", schedule=None) as dag:
        options = {"poll_interval": 0.05, "wait_for_completion": True, "output_schema": PRICES, "deferrable": False}
        CrewKickoffOperator.partial(task_id="crew", **options).expand(inputs=[{}])
    operator = dag.get_task("crew").unmap({"inputs": {}})
    with pytest.raises(CrewTaskFailed, match=r"\$\.total"):
        run(operator)


def test_a_decorated_function_takes_it(server: FaultServer) -> None:
    server.on(POLL, completed(BAD))

    @dag(schedule=None)
    def of_crews() -> None:
        @task.crew(output_schema=PRICES, poll_interval=0.05, deferrable=False)
        def write() -> dict[str, str]:
            return {}

        write()

    with pytest.raises(CrewTaskFailed, match=r"\$\.total"):
        run(of_crews().get_task("write"))


@pytest.mark.since_airflow("3.1")
def test_every_wait_of_the_group_compares(server: FaultServer) -> None:
    from airflow_crew_provider.task_groups.crew import crew_with_review

    with DAG("group", schedule=None) as dag:
        crew_with_review(inputs={}, max_rounds=2, output_schema=PRICES)
    waits = [each for each in dag.tasks if isinstance(each, CrewStatusSensor)]
    found = {each.task_id for each in waits if each.output_schema == PRICES}
    assert found == {"crew.wait", "crew.round_1.wait", "crew.round_2.wait"}


@in_both_places
@pytest.mark.parametrize("made", [kickoff, sensor])
def test_exceeding_max_total_tokens_fails_the_task_with_the_figures(
    server: FaultServer, made: Any, deferrable: bool
) -> None:
    server.on(POLL, SPEC.running, LIVE.completed)
    with pytest.raises(CrewTaskFailed, match="Execution k-1 used 1250 tokens, more than max_total_tokens of 1249"):
        run(made(deferrable=deferrable, output_schema=None, max_total_tokens=1249))


def test_an_execution_may_use_as_many_tokens_as_are_allowed(server: FaultServer) -> None:
    server.on(POLL, LIVE.completed)
    record = run(sensor(deferrable=False, output_schema=None, max_total_tokens=1250))
    assert record["usage"] == {"total_tokens": 1250}


@pytest.mark.row("N30")
@in_both_places
@pytest.mark.parametrize("made", [kickoff, sensor])
@pytest.mark.parametrize("limit", [{"max_total_tokens": 10}, {"max_cost": 0.5}], ids=str)
def test_a_budget_fails_where_the_service_reports_no_usage(
    server: FaultServer, made: Any, deferrable: bool, limit: Any
) -> None:
    server.on(POLL, SPEC.running, SPEC.completed)
    with pytest.raises(
        CrewTaskFailed, match=r"For execution k-1, the service did not report .*on_unknown_usage='ignore'"
    ):
        run(made(deferrable=deferrable, output_schema=None, **limit))


@pytest.mark.row("N30")
@pytest.mark.parametrize("made", [kickoff, sensor])
def test_unknown_usage_may_be_ignored(server: FaultServer, log_text: Callable[[], str], made: Any) -> None:
    server.on(POLL, SPEC.completed)
    record = run(made(deferrable=False, output_schema=None, max_total_tokens=1, on_unknown_usage="ignore"))
    assert record["output"] == "the output"
    assert "For execution k-1, the service did not report how many tokens it used" in log_text()


@pytest.mark.row("N30")
def test_unknown_usage_is_not_judged_at_a_draft(server: FaultServer) -> None:
    server.on(POLL, PENDING_SPEC)
    assert run(sensor(deferrable=False, output_schema=None, max_total_tokens=1))["state"] == "pending"


@pytest.mark.row("N30")
def test_exceeding_max_cost_fails_the_task_with_the_figures(server: FaultServer) -> None:
    server.on(POLL, {**LIVE.completed, "usage_metrics": {"total_tokens": 7, "cost_usd": 0.75}})
    with pytest.raises(CrewTaskFailed, match=r"Execution k-1 cost 0\.75 USD, more than max_cost of 0\.5"):
        run(sensor(deferrable=False, output_schema=None, max_cost=0.5))


@pytest.mark.row("N30")
@pytest.mark.since_airflow("3.1")
def test_ask_is_refused_at_parsing_where_nobody_can_be_asked() -> None:
    from airflow_crew_provider.task_groups.crew import crew_with_review

    for made in (kickoff, sensor):
        with pytest.raises(ValueError, match=r"not .ask.; only CrewUsageApprovalOperator supports .ask."):
            made(max_total_tokens=1, on_unknown_usage="ask")
    with DAG("group", schedule=None), pytest.raises(ValueError, match="not 'ask'"):
        crew_with_review(inputs={}, max_total_tokens=500, on_unknown_usage="ask")


@pytest.mark.parametrize("made", [kickoff, sensor])
@pytest.mark.parametrize("most", [0, -1, 1.5, "1000", True])
def test_a_non_integer_token_limit_is_refused_at_dag_parsing(made: Any, most: Any) -> None:
    with pytest.raises(ValueError, match="max_total_tokens must be an integer"):
        made(max_total_tokens=most)


@pytest.mark.since_airflow("3.1")
def test_the_group_hands_its_budget_to_every_wait() -> None:
    from airflow_crew_provider.task_groups.crew import crew_with_review

    with DAG("group", schedule=None) as dag:
        limits = {"max_total_tokens": 500, "max_cost": 0.5, "on_unknown_usage": "ignore", "stop_over_budget": False}
        crew_with_review(inputs={}, max_rounds=1, **limits)
    waits = [dag.get_task(f"crew.{name}") for name in ("wait", "round_1.wait")]
    assert [{name: getattr(each, name) for name in limits} for each in waits] == [limits] * 2
