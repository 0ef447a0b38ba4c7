"""A triggerer is killed while a hundred tasks wait in it."""

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

WAITS, WITH_DEADLINE, LET_GO = 100, 4, 16
TIMEOUT = 90.0
TOPICS = [f"many {number}" for number in range(WAITS)]


@pytest.mark.row("A3")
def test_a3_a_hundred_waits_go_on_in_another_triggerer_with_their_deadlines_and_nothing_is_started_again(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    deployment = deployments["spec"]
    with FaultProxy(deployment.url, seed=0, faults=()) as proxy, deployment.behind(proxy, airflow) as crew:
        run = airflow.api.trigger("many_waits", {"crew": crew, "rows": [_row(topic) for topic in TOPICS]})
        wait_until(lambda: _count(run, "deferred") == WAITS, "all waits", pause=2, patience=2 * PATIENCE)
        ids = {topic: deployment.executions(topic)[0]["id"] for topic in TOPICS}

        airflow.kill("triggerer")
        killed = time.time()
        airflow.start("triggerer")
        wait_until(lambda: _looked_at(proxy, killed) >= set(ids.values()), "a look at each execution")
        taken_over = time.time()

        deployment.crew.let_go(*TOPICS[:LET_GO])
        wait_until(lambda: _count(run, "success") == LET_GO + 1, "results", pause=1)
        wait_until(lambda: _count(run, "failed") == WITH_DEADLINE, "the deadlines", pause=1)
        ends = [_end(task) for task in run.tasks() if task["state"] == "failed"]
        assert max(ends) < taken_over + TIMEOUT, "a deadline is not counted anew from the restart"
        assert "The wait timed out after 1 min" in run.log("crew", map_index=WAITS - 1)

        run.mark("failed")
        left = [ids[topic] for topic in TOPICS[LET_GO:]]
        wait_until(lambda: all(map(deployment.is_stopped, left)), "the stop of what was left", pause=1)
        assert sum(request.target == "/kickoff" for request in proxy.requests) == WAITS
        assert [len(deployment.executions(topic)) for topic in TOPICS] == [1] * WAITS
        assert not any(deployment.is_stopped(ids[topic]) for topic in TOPICS[:LET_GO])


def _row(topic: str) -> dict[str, Any]:
    """Return one kickoff; the last few have a deadline."""
    timeout = TIMEOUT if topic in TOPICS[-WITH_DEADLINE:] else None
    return {"inputs": {"topic": topic}, "timeout": timeout}


def _count(run: DagRun, state: str) -> int:
    return list(run.states().values()).count(state)


def _looked_at(proxy: FaultProxy, since: float) -> set[str]:
    """Return the ids of executions that were polled since, each by itself or many in one request."""
    targets = [urlsplit(request.target) for request in proxy.requests if request.at > since]
    together = (parse_qs(target.query).get("ids", [""])[0].split(",") for target in targets)
    return {target.path.rpartition("/")[2] for target in targets} | {each for ids in together for each in ids}


def _end(task: dict[str, Any]) -> float:
    return datetime.fromisoformat(task["end_date"]).timestamp()
