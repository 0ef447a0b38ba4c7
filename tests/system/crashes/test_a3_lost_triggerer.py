"""A triggerer is killed while many tasks wait in it."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from faults.proxy import FaultProxy
from held import Deployment

from scripts.stack import AirflowStack, DagRun, wait_until
from scripts.stack.waiting import PATIENCE

WITH_DEADLINE = 4
TIMEOUT = 90.0


@pytest.mark.row("A3")
@pytest.mark.parametrize(("waits", "ending"), [(10, 3), pytest.param(100, 16, marks=pytest.mark.long)])
def test_another_triggerer_resumes_many_waits_and_deadlines_without_new_executions(
    waits: int, ending: int, airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    deployment = deployments["spec"]
    topics = [f"{number} of {waits}" for number in range(waits)]
    with FaultProxy(deployment.url, seed=0, faults=()) as proxy, deployment.behind(proxy, airflow) as crew:
        run = airflow.api.trigger(
            "many_waits", {"crew": crew, "rows": [_row(topic, topic in topics[-WITH_DEADLINE:]) for topic in topics]}
        )
        wait_until(lambda: _count(run, "deferred") == waits, "all waits", pause=2, patience=2 * PATIENCE)
        ids = {topic: deployment.executions(topic)[0]["id"] for topic in topics}

        airflow.kill("triggerer")
        killed = time.time()
        airflow.start("triggerer")
        wait_until(lambda: _looked_at(proxy, killed) >= set(ids.values()), "a look at each execution")
        taken_over = time.time()

        deployment.crew.let_go(*topics[:ending])
        wait_until(lambda: _count(run, "success") == ending + 1, "results", pause=1)
        wait_until(lambda: _count(run, "failed") == WITH_DEADLINE, "the deadlines", pause=1)
        ends = [_end(task) for task in run.tasks() if task["state"] == "failed"]
        assert max(ends) < taken_over + TIMEOUT, "a deadline is not counted anew from the restart"
        assert "The wait timed out after 1 min" in run.log("crew", map_index=waits - 1)

        run.mark("failed")
        left = [ids[topic] for topic in topics[ending:]]
        wait_until(lambda: all(map(deployment.is_stopped, left)), "the stop of what was left", pause=1)
        assert sum(request.target == "/kickoff" for request in proxy.requests) == waits
        assert [len(deployment.executions(topic)) for topic in topics] == [1] * waits
        assert not any(deployment.is_stopped(ids[topic]) for topic in topics[:ending])


def _row(topic: str, has_deadline: bool) -> dict[str, Any]:
    return {"inputs": {"topic": topic}, "timeout": TIMEOUT if has_deadline else None}


def _count(run: DagRun, state: str) -> int:
    return list(run.states().values()).count(state)


def _looked_at(proxy: FaultProxy, since: float) -> set[str]:
    """Return the ids of executions that were polled since, each by itself or many in one request."""
    targets = [urlsplit(request.target) for request in proxy.requests if request.at > since]
    together = (parse_qs(target.query).get("ids", [""])[0].split(",") for target in targets)
    return {target.path.rpartition("/")[2] for target in targets} | {each for ids in together for each in ids}


def _end(task: dict[str, Any]) -> float:
    return datetime.fromisoformat(task["end_date"]).timestamp()
