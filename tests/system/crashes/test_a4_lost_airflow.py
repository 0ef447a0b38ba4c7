"""Airflow's own servers are lost: scheduler, API server, the metadata database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from faults.proxy import FaultProxy
from held import Deployment, wait_for_looks, wait_until_deferred

from scripts.stack import AirflowStack, DagRun, wait_until

OUTAGE = 30.0


@contextmanager
def waiting(airflow: AirflowStack, deployments: dict[str, Deployment], topic: str) -> Iterator[list[FaultProxy]]:
    """Hold a wait in the triggerer and one in a worker; at the end both must have the result of one execution."""
    with ExitStack() as stack:
        proxies, runs = [], []
        for dag_id, deployment in (("deferred", deployments["spec"]), ("in_worker", deployments["live"])):
            proxies.append(stack.enter_context(FaultProxy(deployment.url, seed=0, faults=())))
            crew = stack.enter_context(deployment.behind(proxies[-1], airflow))
            runs.append((airflow.api.trigger(dag_id, {"crew": crew, "topic": topic}), deployment))
        wait_until_deferred(runs[0][0], proxies[0])
        wait_for_looks(proxies[1])
        yield proxies
        for run, deployment in runs:
            deployment.crew.let_go(topic)
            run.wait_for("success")
            _agrees(run, deployment, topic)


def _agrees(run: DagRun, deployment: Deployment, topic: str) -> None:
    [execution] = deployment.executions(topic)
    assert execution["state"] == "completed"
    assert run.xcom("crew")["execution_id"] == execution["id"]


def _revive(airflow: AirflowStack) -> None:
    """Do what Kubernetes does: start what has ended, and end a scheduler that lost its heartbeat.

    With the LocalExecutor a scheduler without a database waits for its running tasks before it ends.
    """
    airflow.kill("scheduler")
    airflow.start("scheduler")
    for _ in range(3):  # what the outage ends may end late
        for name, component in list(airflow.group.components.items()):
            if name in airflow.components and not component.alive:
                airflow.start(name)
        with suppress(RuntimeError):
            return airflow.wait_healthy()
    return airflow.wait_healthy()


@pytest.mark.long
@pytest.mark.row("A4")
def test_every_wait_survives_killing_the_scheduler_and_api_server(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    with waiting(airflow, deployments, "servers lost") as [deferred, in_worker]:
        for name in ("scheduler", "api-server"):
            airflow.kill(name)
        wait_for_looks(deferred)
        airflow.start("api-server")
        wait_until(airflow.answers_tasks, "the API server")
        airflow.start("scheduler")
        airflow.wait_healthy()
        wait_for_looks(in_worker)


@pytest.mark.long
@pytest.mark.row("A4")
def test_every_wait_survives_thirty_seconds_without_the_metadata_database(
    postgres: str, airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    assert airflow.database
    with waiting(airflow, deployments, "database lost") as [deferred, in_worker]:
        ends = time.time() + OUTAGE
        with airflow.database.gone():
            wait_until(lambda: time.time() > ends, "the end of the outage")
        _revive(airflow)
        wait_for_looks(deferred)
        wait_for_looks(in_worker)
