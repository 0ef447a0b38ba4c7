"""Many crews at once, for the run in which everything fails at random."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task, task_group

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.task_groups.crew import crew_with_review

WAYS = {"deferred": True, "worker": False}
COMMON: dict[str, Any] = {
    "schedule": None,
    "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
    "catchup": False,
    "max_active_tasks": 64,
    "params": {"crew": Param("crew_default", type="string"), "topics": Param([], type="array")},
}


@task(retries=9, retry_delay=timedelta(seconds=1))
def neighbour() -> None:
    """Is cleared while the others are at work."""


for name, deferrable in WAYS.items():
    with DAG(dag_id=f"chaos_{name}", **COMMON):

        @task(retries=9, retry_delay=timedelta(seconds=1))
        def rows(params: dict[str, Any] | None = None) -> list[dict[str, str]]:
            return [{"topic": topic, "review": "no"} for topic in (params or {})["topics"]]

        CrewKickoffOperator.partial(
            task_id="crew",
            crew_conn_id="{{ params.crew }}",
            wait_for_completion=True,
            deferrable=deferrable,
            poll_interval=1,
            retries=9,
            retry_delay=timedelta(seconds=1),
        ).expand(inputs=rows())
        neighbour()

# The crew of the second asks three questions, and one more for each call during which its service was killed.
for name, max_rounds in {"review": 3, "asks": 6}.items():
    with DAG(dag_id=f"chaos_{name}", **COMMON) as dag:

        @task
        def topics(params: dict[str, Any] | None = None) -> list[str]:
            return (params or {})["topics"]

        @task_group
        def article(topic: str, max_rounds: int = max_rounds) -> None:
            common: dict[str, Any] = {"crew_conn_id": "{{ params.crew }}", "poll_interval": 1}
            crew_with_review(group_id="crew", inputs={"topic": topic}, max_rounds=max_rounds, **common)

        article.expand(topic=topics())
        neighbour()
        # More than the group's own, since faults are drawn by the dozen.
        for each in dag.tasks:
            each.retries, each.retry_delay = 9, timedelta(seconds=1)
