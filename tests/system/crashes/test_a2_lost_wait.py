"""A worker is lost while it waits for an execution whose id is recorded."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from faults.proxy import FaultProxy
from held import Deployment, kill_worker, wait_for_looks

from scripts.stack import AirflowStack


@pytest.mark.row("A2")
def test_a_retry_after_a_lost_wait_resumes_the_same_execution(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    topic = "lost wait"
    with ExitStack() as stack:
        proxies = {
            name: stack.enter_context(FaultProxy(each.url, seed=0, faults=())) for name, each in deployments.items()
        }
        runs = {}
        for name, proxy in proxies.items():
            crew = stack.enter_context(deployments[name].behind(proxy, airflow))
            runs[name] = airflow.api.trigger("in_worker", {"crew": crew, "topic": topic})
        for name, proxy in proxies.items():
            wait_for_looks(proxy)
            kill_worker(airflow, runs[name])
        for name, proxy in proxies.items():
            wait_for_looks(proxy)
            deployments[name].crew.let_go(topic)
        for name, run in runs.items():
            run.wait_for("success")
            [execution] = deployments[name].executions(topic)
            assert run.xcom("crew")["execution_id"] == execution["id"]
            assert run.task("crew")["try_number"] == 2
            assert f"An earlier try started execution {execution['id']}" in run.log("crew", try_number=2)
