"""A worker is lost between the stop of an execution that is over its budget and the end of its task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from faults.proxy import STOP, FaultProxy
from held import TOKENS, Deployment, HeldAnswer, holding, kill_worker

from scripts.stack import AirflowStack, DagRun
from scripts.stack.waiting import PATIENCE

CASES = [("spec", "over_budget"), ("live", "over_budget_deferred")]
Lost = dict[tuple[str, str], tuple[DagRun, Deployment, str]]


@pytest.fixture(scope="module")
def lost(airflow: AirflowStack, deployments: dict[str, Deployment]) -> Iterator[Lost]:
    """Runs whose workers were killed when the service had stopped the execution and not answered yet."""
    with ExitStack() as stack:
        held, runs = {}, {}
        for dialect, dag_id in CASES:
            case, deployment, topic = (dialect, dag_id), deployments[dialect], f"lost stop, {dialect}"
            held[case] = HeldAnswer()
            proxy = stack.enter_context(FaultProxy(deployment.url, seed=0, rate=1.0, faults=holding(held[case], STOP)))
            crew = stack.enter_context(deployment.behind(proxy, airflow))
            runs[case] = airflow.api.trigger(dag_id, {"crew": crew, "topic": topic}), deployment, topic
        for case in CASES:
            assert held[case].taken.wait(PATIENCE), f"nobody stopped the execution: {case}"
            kill_worker(airflow, runs[case][0])
            held[case].release.set()
        yield runs


@pytest.mark.long  # without processes: test_over_budget.py
@pytest.mark.row("N33")
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_worker_lost_after_the_stop_starts_no_second_execution(lost: Lost, case: tuple[str, str]) -> None:
    run, deployment, topic = lost[case]
    run.wait_for("failed")
    [execution] = deployment.executions(topic)
    assert execution["state"] == "stopped"
    assert run.task("crew")["try_number"] < 4, "the retry has failed for good"
    said = run.log("crew")
    assert f"used {TOKENS} tokens, more than max_total_tokens of 1000. Execution {execution['id']} has ended" in said
