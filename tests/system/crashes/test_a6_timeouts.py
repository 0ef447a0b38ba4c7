"""Every kind of timeout, and what becomes of the execution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle

import pytest
from faults.proxy import FaultProxy
from held import Deployment

from scripts.stack import AirflowStack, DagRun, StackTimeout, wait_until

RUN_TIMEOUTS = [f"run_timeout_{name}" for name in ("deferred", "deferred_kept", "in_worker", "in_worker_kept")]
SENSORS = [f"sensor_{name}{cancels}" for name in ("poke", "reschedule", "deferred") for cancels in ("", "_cancels")]
EXECUTION_TIMEOUTS = ["execution_timeout", "execution_timeout_kept", "execution_timeout_deferred"]


@dataclass
class Late:
    """A run that reaches a timeout while its execution goes on."""

    run: DagRun
    task_id: str
    deployment: Deployment

    @property
    def execution(self) -> str:
        return self.deployment.executions(self.run.dag_id)[0]["id"]

    def says(self, text: str) -> None:
        """Wait for words in the task's log: what a triggerer writes comes after the task's end."""
        try:
            wait_until(lambda: text in self.run.log(self.task_id), f"{text!r} in the log of {self.run.dag_id}")
        except StackTimeout as late:
            raise StackTimeout(f"{late}: {self.run.failure_report()}\n{self.run.log(self.task_id)}") from None


@pytest.fixture(scope="module")
def late(airflow: AirflowStack, deployments: dict[str, Deployment]) -> Iterator[dict[str, Late]]:
    with ExitStack() as stack:
        ways = []
        for deployment in deployments.values():
            proxy = stack.enter_context(FaultProxy(deployment.url, seed=0, faults=()))
            ways.append((deployment, stack.enter_context(deployment.behind(proxy, airflow))))
        late = {}
        for dag_id, (deployment, crew) in zip(
            [*RUN_TIMEOUTS, *EXECUTION_TIMEOUTS, *SENSORS], cycle(ways), strict=False
        ):
            conf = {"crew": crew, "topic": dag_id}
            if dag_id in SENSORS:
                conf["kickoff_id"] = deployment.kickoff(dag_id)
            task_id = "wait" if dag_id in SENSORS else "crew"
            late[dag_id] = Late(airflow.api.trigger(dag_id, conf), task_id, deployment)
        yield late


@pytest.mark.long
@pytest.mark.row("A6")
@pytest.mark.parametrize("dag_id", SENSORS)
def test_a_sensor_timeout_reports_the_fate_of_the_execution(late: dict[str, Late], dag_id: str) -> None:
    each = late[dag_id]
    each.run.wait_for("failed")
    each.says("The wait timed out after ")
    each.says(f"Execution {each.execution} ")
    cancels = dag_id.endswith("_cancels")
    each.says(f"Execution {each.execution} was stopped" if cancels else "Clear this task to wait again")
    assert each.deployment.is_stopped(each.execution) == cancels


@pytest.mark.row("A6")
@pytest.mark.parametrize("dag_id", EXECUTION_TIMEOUTS)
def test_an_execution_timeout_ends_the_wait_and_reports_the_fate(late: dict[str, Late], dag_id: str) -> None:
    each = late[dag_id]
    each.run.wait_for("failed")
    kept = dag_id.endswith("_kept")
    each.says("may still be active" if kept else f"Execution {each.execution} was stopped")
    assert each.deployment.is_stopped(each.execution) != kept


@pytest.mark.row("A6")
@pytest.mark.parametrize("dag_id", RUN_TIMEOUTS)
def test_a_run_timeout_reports_the_fate_of_the_execution(late: dict[str, Late], dag_id: str) -> None:
    each = late[dag_id]
    each.run.wait_for("failed")
    kept = dag_id.endswith("_kept")
    fate = "was not stopped and may still be active" if kept else "was stopped"
    each.says(f"Execution {each.execution} {fate}")
    assert each.deployment.is_stopped(each.execution) != kept
