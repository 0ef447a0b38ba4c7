"""What users meet who call the parts by hand, in a test or a script, without a supervisor around them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.providers.common.compat import connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException, dag, task
from sampling import sampled

from airflow_crew_provider.api.status import execution
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import ExecutionState
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.resume import sending
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.testing import scenario
from airflow_crew_provider.triggers.crew import CrewStatusTrigger

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
SLOW = {"inputs": [], "tasks": [{"id": "one", "seconds": 60, "output": "late"}]}


class TaskInstance:
    dag_id, run_id, task_id, map_index, try_number, max_tries, start_date = "d", "r", "t", -1, 1, 0, None

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


@pytest.fixture
def context() -> dict[str, Any]:
    return {"ti": TaskInstance()}


def kickoff(**more: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(task_id="kickoff", **{"inputs": {"topic": "tea"}, **more})


def test_a_kickoff_needs_nothing_but_a_task_instance(scripted_crew, context):
    scripted_crew(scenario("All on {topic}"))
    record = kickoff(wait_for_completion=True, poll_interval=0.1).execute(context)
    assert (record["state"], record["output"]) == ("completed", "All on tea")
    assert context["ti"].pushed["kickoff_id"] == record["kickoff_id"]


@pytest.mark.row("A5")
def test_on_kill_stops_the_execution_that_was_started(scripted_crew, context):
    scripted_crew(SLOW)
    operator = kickoff(inputs={})
    kickoff_id = operator.execute(context)
    operator.on_kill()
    assert CrewHook().get_status(kickoff_id).state is ExecutionState.ERROR


@pytest.mark.row("A5")
def test_on_kill_of_a_taskless_trigger_stops_the_execution(scripted_crew):
    scripted_crew(SLOW)
    kickoff_id = CrewHook().kickoff({})
    asyncio.run(CrewStatusTrigger(kickoff_id, cancel_on_kill=True).on_kill())
    assert CrewHook().get_status(kickoff_id).state is ExecutionState.ERROR


def test_a_sensor_takes_the_end_event_of_a_handmade_trigger(scripted_crew, context):
    scripted_crew({"inputs": [], "tasks": [{"id": "one", "seconds": 0.5, "output": "done"}]})
    kickoff_id = CrewHook().kickoff({})

    async def first() -> Any:
        return (await CrewStatusTrigger(kickoff_id, poll_interval=0.1).run().__anext__()).payload

    record = CrewStatusSensor(task_id="wait", kickoff_id=kickoff_id).execute_complete(context, asyncio.run(first()))
    assert (record["state"], record["output"]) == ("completed", "done")


def test_a_sensor_keeps_the_timeout_that_it_was_given(scripted_crew, context):
    scripted_crew(scenario("x"))
    kickoff_id = CrewHook().kickoff({"topic": "tea"})
    sensor = CrewStatusSensor(task_id="wait", kickoff_id=kickoff_id, timeout=70, poke_interval=0.1)
    sensor.execute(context)
    assert sensor.timeout == 70


def test_the_inputs_annotation_of_a_decorated_function_splits_no_record():
    @dag(schedule=None)
    def of_crews() -> None:
        @task.crew
        def write() -> dict[str, str]:
            return {"topic": "tea"}

        write()

    assert of_crews().get_task("write").multiple_outputs is False


def test_four_fields_are_left_to_the_service_to_judge(scripted_crew, context, monkeypatch):
    monkeypatch.setattr(sending, "SETTLING", 0.3)
    scripted_crew(SLOW)
    kickoff_id = CrewHook().kickoff({})
    resume = CrewResumeOperator(
        task_id="resume", execution_id=kickoff_id, crew_task_id="one", human_feedback="", is_approve=True
    )
    with pytest.raises(Exception, match=r"400.*answered elsewhere"):
        resume.execute(context)


def test_the_connection_test_names_a_connection_that_is_missing():
    assert CrewHook("crew_of_nobody").test_connection() == (False, "The conn_id `crew_of_nobody` isn't defined")


@pytest.mark.row("A4")
def test_a_trigger_forgives_failed_connection_lookups(scripted_crew, monkeypatch):
    scripted_crew(scenario("done"))
    kickoff_id = CrewHook().kickoff({"topic": "tea"})
    failures = iter([RuntimeError("API server is away"), ConnectionError("still away")])
    found = connection.get_async_connection

    async def flaky(conn_id: str) -> Any:
        if error := next(failures, None):
            raise error
        return await found(conn_id)

    monkeypatch.setattr(connection, "get_async_connection", flaky)

    async def first() -> Any:
        return (await CrewStatusTrigger(kickoff_id, poll_interval=0.1).run().__anext__()).payload

    assert asyncio.run(first())["kind"] == "completed"
    assert next(failures, None) is None


@pytest.mark.row("N18")
def test_a_trigger_gives_up_on_a_long_missing_connection(impatient: None):
    async def first() -> Any:
        return (await CrewStatusTrigger("k-1", "crew_of_nobody", poll_interval=0.05).run().__anext__()).payload

    event = asyncio.run(first())
    assert event["kind"] == "gave_up"
    assert "crew_of_nobody" in event["message"]
    assert "has failed" in event["message"]


def test_json_in_a_result_text_holds_nothing_a_database_refuses():
    seen = execution("k-1", {"status": "completed", "result": {"output": '{"a": 1e999, "b": "\\u0000x"}'}})
    assert seen.output_json == {"a": None, "b": "\ufffdx"}


def test_an_unknown_connection_is_airflows_own_error():
    with pytest.raises(AirflowNotFoundException):
        CrewHook("crew_of_nobody").get_inputs()


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_decorated_function_may_be_awaitable(scripted_crew, context, kind):
    scripted_crew(scenario("On {topic}"))

    def inputs(topic: str):
        return {"topic": topic}

    async def awaited_inputs(topic: str):
        await asyncio.sleep(0)
        return {"topic": topic}

    made = task.crew(inputs if kind == "def" else awaited_inputs, poll_interval=0.05)("tea")
    assert made.operator.execute(context)["output"] == "On tea"


@pytest.mark.parametrize("name", sampled(["loop", "dag_run", "ti", "task_state_store"], 3))
def test_a_decorated_functions_argument_may_share_a_context_name(scripted_crew, context, name):
    scripted_crew(scenario("On {topic}"))
    made = task.crew(lambda **given: {"topic": given[name]}, task_id="write", poll_interval=0.05)(**{name: "tea"})
    assert made.operator.execute(context)["output"] == "On tea"


def test_a_decorated_generator_is_refused(context):
    async def inputs():
        yield {"topic": "tea"}

    made = task.crew(inputs)()
    with pytest.raises(Exception, match="inputs: must be an object"):
        made.operator.execute(context)
