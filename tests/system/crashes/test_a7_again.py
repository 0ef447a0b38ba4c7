"""The same work again on purpose: a task cleared after its completion, and a second run of the DAG."""

from __future__ import annotations

import pytest
from faults.proxy import FaultProxy
from held import Deployment

from scripts.stack import AirflowStack


@pytest.mark.long  # without processes: test_kickoff_once.py
@pytest.mark.row("A7")
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_clears_and_second_runs_start_and_log_new_executions(
    airflow: AirflowStack, deployments: dict[str, Deployment], dialect: str
) -> None:
    topic, deployment = f"again, {dialect}", deployments[dialect]
    deployment.crew.let_go(topic)
    with FaultProxy(deployment.url, seed=0, faults=()) as proxy, deployment.behind(proxy, airflow) as crew:
        conf = {"crew": crew, "topic": topic}
        run = airflow.api.trigger("kickoff_then_wait", conf)
        run.wait_for("success")
        run.clear("crew", downstream=True)
        run.wait_for_task("wait", ["success"])
        run.wait_for("success")
        other = airflow.api.trigger("kickoff_then_wait", conf)
        other.wait_for("success")

        first, second, third = (execution["id"] for execution in deployment.executions(topic))
        said = run.log("crew", try_number=2)
        assert f"The task was cleared. The earlier execution {first} is completed. Starting a new execution" in said
        assert f"Started execution {second}" in said
        assert run.xcom("wait")["kickoff_id"] == second
        assert f"Started execution {third}" in other.log("crew")
        assert first not in other.log("crew")
        assert other.xcom("wait")["kickoff_id"] == third
