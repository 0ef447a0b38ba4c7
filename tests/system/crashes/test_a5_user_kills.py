"""What a user does to a waiting task, and what becomes of the execution at the service."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.proxy import FaultProxy
from held import Deployment, wait_for_looks, wait_until_deferred, worker

from scripts.find_postgres import server_url
from scripts.stack import AirflowStack, DagRun, ProcessGroup, wait_until
from tests.system.conftest import HERE
from tests.system.reviews.test_loop import audited


@dataclass
class Waiting:
    """A run whose task waits for an execution."""

    run: DagRun
    deployment: Deployment
    topic: str
    proxy: FaultProxy

    def executions(self) -> list[str]:
        return [execution["id"] for execution in self.deployment.executions(self.topic)]

    def stopped(self, execution_id: str) -> bool:
        return wait_until(lambda: self.deployment.is_stopped(execution_id), f"the stop of {execution_id}")

    def says(self, text: str, tries: int = 1) -> bool:
        return wait_until(lambda: text in self.run.log("crew", try_number=tries), f"{text!r} in the log")


Begin = Callable[..., Waiting]


@pytest.fixture
def begin(airflow: AirflowStack, deployments: dict[str, Deployment]) -> Iterator[Begin]:
    """Start runs of DAGs at once and wait until each waits for its execution."""
    with beginning(airflow, deployments) as start:
        yield start


@contextmanager
def beginning(airflow: AirflowStack, deployments: dict[str, Deployment]) -> Iterator[Begin]:
    with ExitStack() as stack:

        def start(dag_id: str, topic: str, dialect: str = "spec") -> Waiting:
            deployment = deployments[dialect]
            proxy = stack.enter_context(FaultProxy(deployment.url, seed=0, faults=()))
            crew = stack.enter_context(deployment.behind(proxy, airflow))
            run = airflow.api.trigger(dag_id, {"crew": crew, "topic": topic})
            return Waiting(run, deployment, topic, proxy)

        yield start


def waits(*waiting: Waiting) -> None:
    """Wait until each task waits, and the process that waits looks: no triggerer stops what it never took up."""
    for each in waiting:
        if each.run.dag_id.startswith("deferred"):
            wait_until_deferred(each.run, each.proxy)
        else:
            wait_for_looks(each.proxy)


@pytest.mark.long
@pytest.mark.row("A5")
def test_marking_a_deferred_wait_failed_stops_its_execution_by_default(
    begin: Begin, airflow: AirflowStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, live = begin("deferred", "failed by hand"), begin("deferred", "failed by hand", "live")
    kept = begin("deferred_kept", "failed by hand, kept")
    waits(spec, live, kept)
    for each in (spec, live, kept):
        each.run.mark_task("crew", "failed")
    for each in (spec, live):
        [execution] = each.executions()
        assert each.stopped(execution)
        assert each.says(f"Execution {execution} was stopped")
    [execution] = kept.executions()
    assert kept.says(f"Execution {execution} was not stopped and may still be active")
    assert not kept.deployment.is_stopped(execution)
    [line] = audited(airflow, kept.run, monkeypatch, capsys, "--usage")
    assert (line["task_id"], line["task_state"]) == ("crew", "failed")
    unknown = {"state": None, "usage": None}  # Airflow takes no XCom of a task that was ended by hand
    assert line["executions"] == [{"execution_id": execution, "kickoff_id": execution, **unknown}]


@pytest.mark.row("A5")
@pytest.mark.long
@pytest.mark.since_airflow("3.3")
def test_killed_waits_log_their_fate_despite_a_lagging_busy_triggerer(
    deployments: dict[str, Deployment], tmp_path: Path
) -> None:
    with ProcessGroup() as group:
        airflow = AirflowStack(
            dags=[HERE / "dags"],
            env={"PYTHONPATH": str(HERE / "lagging_triggerer"), "CREW_TEST_LAGS": str(tmp_path)},
            postgres=server_url(),
            group=group,
        ).start_all()
        with beginning(airflow, deployments) as begin:
            all_of_them = [begin("deferred", f"among others {number}") for number in range(3)]
            waits(*all_of_them)
            for each in all_of_them:
                each.run.mark_task("crew", "failed")
            for each in all_of_them:
                assert each.says(f"Execution {each.executions()[0]} was stopped")
    assert list(tmp_path.iterdir()), "the triggerer did not lag"


@pytest.mark.long
@pytest.mark.row("A5")
def test_marking_the_run_failed_stops_a_deferred_waits_execution(begin: Begin) -> None:
    each = begin("deferred", "run stopped")
    waits(each)
    each.run.mark("failed")
    [execution] = each.executions()
    assert each.stopped(execution)
    assert each.says(f"Execution {execution} was stopped")


@pytest.mark.row("A5")
def test_clearing_a_deferred_wait_restarts_and_reports_the_earlier_execution(begin: Begin) -> None:
    stopped, kept = begin("deferred", "cleared"), begin("deferred_kept", "cleared, kept")
    waits(stopped, kept)
    for each in (stopped, kept):
        each.run.clear("crew")
    for each in (stopped, kept):
        wait_until(lambda each=each: len(each.executions()) == 2, "a new execution")
        each.run.wait_for_task("crew", ["deferred"])
        assert each.says(f"Started execution {each.executions()[1]}", tries=2)
        assert each.says("The task was cleared", tries=2)
        assert each.says(each.executions()[0], tries=2)
    assert stopped.stopped(stopped.executions()[0])
    assert not kept.deployment.is_stopped(kept.executions()[0])
    assert kept.says(f"The earlier execution {kept.executions()[0]} is running", tries=2)
    for each in (stopped, kept):
        each.deployment.crew.let_go(each.topic)
        each.run.wait_for("success")
        assert each.run.xcom("crew")["execution_id"] == each.executions()[1]


@pytest.mark.long
@pytest.mark.row("A5")
def test_ending_a_running_wait_stops_the_execution_unless_configured_otherwise(begin: Begin) -> None:
    failed, kept = begin("in_worker", "running, failed by hand"), begin("in_worker_kept", "running, kept")
    run_stopped, cleared = begin("in_worker", "running, run stopped", "live"), begin("in_worker", "running, cleared")
    waits(failed, kept, run_stopped, cleared)
    for each in (failed, kept):
        each.run.mark_task("crew", "failed")
    run_stopped.run.mark("failed")
    cleared.run.clear("crew")
    for each in (failed, run_stopped, cleared):
        assert each.stopped(each.executions()[0])
        assert each.says(f"Execution {each.executions()[0]} was stopped")
    assert kept.says(f"Execution {kept.executions()[0]} was not stopped and may still be active")
    assert not kept.deployment.is_stopped(kept.executions()[0])
    wait_until(lambda: len(cleared.executions()) == 2, "a new execution")
    cleared.deployment.crew.let_go(cleared.topic)
    cleared.run.wait_for("success")
    assert cleared.run.xcom("crew")["execution_id"] == cleared.executions()[1]


@pytest.mark.long  # without processes: test_kills_of_tasks.py
@pytest.mark.row("A5", "A38")
def test_a_task_killed_during_a_supervisor_request_stops_its_execution(begin: Begin) -> None:
    failed, cleared = begin("talking", "talking, failed by hand"), begin("talking", "talking, cleared")
    waits(failed, cleared)
    failed.run.mark_task("crew", "failed")
    cleared.run.clear("crew")
    for each in (failed, cleared):
        assert each.stopped(each.executions()[0])
    assert failed.says(f"Execution {failed.executions()[0]} was stopped")
    wait_until(lambda: len(cleared.executions()) == 2, "a new execution")
    # Airflow may end the process before its last line is written; the next try says the same.
    first = cleared.executions()[0]
    fates = f"Execution {first} was stopped", f"The earlier execution {first} is"
    wait_until(lambda: any(fate in cleared.run.log("crew") for fate in fates), f"the fate of {first} in the log")
    cleared.deployment.crew.let_go(cleared.topic)
    cleared.run.wait_for("success")
    assert cleared.run.xcom("crew")["execution_id"] == cleared.executions()[1]
    assert len(failed.executions()) == 1


@pytest.mark.long
@pytest.mark.row("A5")
def test_a_terminated_worker_stops_nothing(airflow: AirflowStack, begin: Begin) -> None:
    each = begin("in_worker", "worker terminated")
    waits(each)
    _, supervisor = worker(airflow, each.run.task("crew"))
    supervisor.terminate()
    [execution] = each.executions()
    assert each.says(f"Execution {execution} was not stopped and may still be active")
    each.deployment.crew.let_go(each.topic)
    each.run.wait_for("success")
    assert each.run.xcom("crew")["execution_id"] == execution


@pytest.mark.long
@pytest.mark.row("A5")
def test_a_triggerer_that_is_restarted_stops_nothing(airflow: AirflowStack, begin: Begin) -> None:
    each = begin("deferred", "triggerer restarted")
    waits(each)
    triggerer = airflow.group.components["triggerer"]
    airflow.kill("triggerer", signal.SIGTERM)
    wait_until(lambda: not triggerer.alive, "the triggerer's end")
    airflow.start("triggerer")
    airflow.wait_healthy()
    [execution] = each.executions()
    assert not each.deployment.is_stopped(execution)
    each.deployment.crew.let_go(each.topic)
    each.run.wait_for("success")
    assert each.executions() == [execution]
