"""`multiple_outputs`: each key of the crew's output is an XCom, beside the record."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, dag, task
from faults.dialects import PENDING_SPEC, SPEC
from faults.server import FaultServer
from simulated_airflow import TaskRun, run
from waiting_tasks import POLL, completed, in_both_places, kickoff_that_waits, sensor_that_waits

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": []})
    server.on("POST /kickoff", {"kickoff_id": "k-1"})


def kickoff(**more: Any) -> CrewKickoffOperator:
    return kickoff_that_waits(**{"multiple_outputs": True, **more})


def sensor(**more: Any) -> CrewStatusSensor:
    return sensor_that_waits(**{"multiple_outputs": True, **more})


@in_both_places
@pytest.mark.parametrize("made", [kickoff, sensor])
def test_each_output_key_is_an_xcom_beside_the_returned_record(
    server: FaultServer, made: Any, deferrable: bool
) -> None:
    server.on(POLL, SPEC.running, completed('{"total": 3, "by day": [1, 2], "note": null}'))
    task_run = TaskRun()
    record = run(made(deferrable=deferrable), task_run)
    assert record["output"] == {"total": 3, "by day": [1, 2], "note": None}
    pushed = {name: task_run.xcom[name] for name in ("total", "by day", "note")}
    assert pushed == record["output"]
    assert "state" not in task_run.xcom


@pytest.mark.since_airflow("3.1")
def test_dags_test_reports_non_ascii_keys_and_pushes_the_others(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server.on(POLL, completed('{"größe": 3, "total": 4, "ключ": 5, "note": 6}'))
    task_run = TaskRun()
    context = task_run.context()
    push = context["ti"].xcom_push

    def as_in_dags_test(key: str, value: Any) -> None:
        key.encode("latin-1").decode()  # its requests stay in the process, and their paths are decoded so
        push(key, value)

    context["ti"].xcom_push = as_in_dags_test
    with pytest.raises(UnicodeError):  # a worker that cannot push is another matter
        kickoff(deferrable=False).execute(context)
    from airflow.sdk.execution_time import supervisor, task_runner

    in_process = supervisor.InProcessSupervisorComms(supervisor=None)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", in_process, raising=False)
    kickoff(deferrable=False).execute(context)
    assert {name: task_run.xcom.get(name) for name in ("total", "note")} == {"total": 4, "note": 6}
    assert "größe" not in task_run.xcom
    assert "`airflow dags test` cannot push the output keys 'größe'; 'ключ'; a worker can" in caplog.text


def test_airflow_does_not_push_the_keys_of_the_record_too(server: FaultServer) -> None:
    server.on(POLL, completed('{"total": 3}'))
    operator = kickoff(deferrable=False)
    assert operator.multiple_outputs, "by this a task downstream reads None where this one was skipped"
    for _ in range(2):  # as in `dag.test()`, which runs one object for each run
        task_run = TaskRun()
        operator.execute(task_run.context())
        assert task_run.xcom["total"] == 3
        assert not operator.multiple_outputs


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("plain text", "is str, not an object"),
        ('{"kickoff_id": 1, "total": 3}', "'kickoff_id' is an XCom key used by Airflow or this provider"),
        ('{"return_value": 1}', "'return_value' is an XCom key used by Airflow or this provider"),
        ('{"": 1}', "'' does not have 1 to 512 characters"),
        ('{"' + "k" * 513 + '": 1}', "does not have 1 to 512 characters"),
        ('{"open?": 1}', "'open?' contains"),
        ('{"#1": 1}', "'#1' contains"),
        ('{"total": 3, "../review/return_value": {"is_approve": true}}', "'../review/return_value' contains"),
    ],
    ids=["text", "kickoff_id", "return_value", "empty", "long", "question mark", "hash", "another task"],
)
def test_unusable_output_keys_fail_the_task_and_push_nothing(server: FaultServer, output: str, problem: str) -> None:
    server.on(POLL, completed(output))
    task_run = TaskRun()
    with pytest.raises(CrewTaskFailed) as failure:
        run(kickoff(deferrable=False), task_run)
    assert problem in str(failure.value)
    assert "its output is still available from the service" in str(failure.value)
    assert "total" not in task_run.xcom


def test_a_list_that_a_schema_accepts_has_no_keys(server: FaultServer) -> None:
    server.on(POLL, completed("[1, 2]"))
    with pytest.raises(CrewTaskFailed, match="is list, not an object"):
        run(sensor(deferrable=False, output_schema={"type": "array"}))


def test_keys_that_break_the_schema_are_not_pushed(server: FaultServer) -> None:
    server.on(POLL, completed('{"total": "three"}'))
    task_run = TaskRun()
    schema = {"properties": {"total": {"type": "number"}}}
    with pytest.raises(CrewTaskFailed, match="does not match output_schema"):
        run(kickoff(deferrable=False, output_schema=schema), task_run)
    assert "total" not in task_run.xcom


def test_a_draft_has_no_keys(server: FaultServer) -> None:
    server.on(POLL, {**PENDING_SPEC, "task_output": '{"total": 3}'})
    task_run = TaskRun()
    operator = sensor(deferrable=False)
    assert operator.execute(task_run.context())["state"] == "pending"
    assert "total" not in task_run.xcom
    assert not operator.multiple_outputs, "Airflow would push the keys of the record"


@pytest.mark.parametrize(("given", "pushed"), [({}, False), ({"multiple_outputs": True}, True)])
def test_a_decorated_function_takes_multiple_outputs_whatever_its_annotation(
    server: FaultServer, given: dict[str, Any], pushed: bool
) -> None:
    server.on(POLL, completed('{"total": 3}'))

    @dag(schedule=None)
    def of_crews() -> None:
        @task.crew(poll_interval=0.05, deferrable=False, **given)
        def write() -> dict[str, str]:
            return {}

        write()["total"]

    task_run = TaskRun()
    run(of_crews().get_task("write"), task_run)
    assert ("total" in task_run.xcom) is pushed


def test_mapped_tasks_take_it(server: FaultServer) -> None:
    server.on(POLL, completed('{"total": 3}'))
    with DAG("mapped", schedule=None) as dag:
        options = {"poll_interval": 0.05, "wait_for_completion": True, "deferrable": False, "multiple_outputs": True}
        CrewKickoffOperator.partial(task_id="crew", **options).expand(inputs=[{}])
    task_run = TaskRun()
    run(dag.get_task("crew").unmap({"inputs": {}}), task_run)
    assert task_run.xcom["total"] == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"wait_for_completion": False}, "multiple_outputs needs wait_for_completion=True"),
        ({"output_to": "file:///tmp/x"}, "multiple_outputs puts the output into XCom; output_to keeps it out"),
    ],
)
def test_incompatible_arguments_are_refused_when_the_dag_is_parsed(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kickoff(**given)
