"""A worker is lost between the POST and the record of its answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from faults.proxy import FaultProxy
from held import Deployment, HeldAnswer, holding, kill_worker

from scripts.stack import AirflowStack, DagRun
from scripts.stack.waiting import PATIENCE

CASES = [(dialect, keys) for dialect in ("spec", "live") for keys in (False, True)]


@dataclass
class Lost:
    """A run whose worker was killed while the answer to its kickoff was under way."""

    run: DagRun
    deployment: Deployment
    topic: str
    proxy: FaultProxy

    def kickoffs(self) -> int:
        return sum(request.target == "/kickoff" for request in self.proxy.requests)


@pytest.fixture(scope="module")
def lost(airflow: AirflowStack, deployments: dict[str, Deployment]) -> Iterator[dict[tuple[str, bool], Lost]]:
    with ExitStack() as stack:
        held, runs = {}, {}
        for dialect, keys in CASES:
            case, topic, deployment = (dialect, keys), f"lost worker, {dialect}, {keys}", deployments[dialect]
            held[case] = HeldAnswer()
            proxy = stack.enter_context(FaultProxy(deployment.url, seed=0, rate=1.0, faults=holding(held[case])))
            crew = stack.enter_context(deployment.behind(proxy, airflow, idempotency_keys=keys))
            run = airflow.api.trigger("in_worker", {"crew": crew, "topic": topic})
            runs[case] = Lost(run, deployment, topic, proxy)
        for case in CASES:
            assert held[case].taken.wait(PATIENCE), f"no kickoff came: {case}"
            kill_worker(airflow, runs[case].run)
            held[case].release.set()
            runs[case].deployment.crew.let_go(runs[case].topic)
        yield runs


@pytest.mark.row("A1")
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_a_worker_lost_after_posting_reports_unknown_outcome_without_restarting(
    lost: dict[tuple[str, bool], Lost], dialect: str
) -> None:
    case = lost[dialect, False]
    case.run.wait_for("failed")
    assert len(case.deployment.executions(case.topic)) == case.kickoffs() == 1
    said = case.run.log("crew", try_number=2)
    assert "An earlier try sent a kickoff at" in said
    assert "its outcome is unknown" in said
    assert "clear this task to start a new one" in said
    [execution] = case.deployment.executions(case.topic)
    assert execution["meta"]["airflow"]["run_id"] == case.run.run_id, "and can be traced back by what it says"


@pytest.mark.row("A1")
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_after_a_lost_worker_the_idempotency_key_finds_the_execution(
    lost: dict[tuple[str, bool], Lost], dialect: str
) -> None:
    case = lost[dialect, True]
    case.run.wait_for("success")
    [execution] = case.deployment.executions(case.topic)
    assert case.kickoffs() == 2, "the second one was answered with the first one's execution"
    assert case.run.xcom("crew")["execution_id"] == execution["id"]
