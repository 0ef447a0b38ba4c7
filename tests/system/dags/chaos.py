"""Many crews at once, for the run in which everything fails at random."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator

WAYS = {"deferred": True, "worker": False}

for name, deferrable in WAYS.items():
    with DAG(
        dag_id=f"chaos_{name}",
        schedule=None,
        start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
        catchup=False,
        max_active_tasks=64,
        params={"crew": Param("crew_default", type="string"), "topics": Param([], type="array")},
    ):

        @task(retries=9, retry_delay=timedelta(seconds=1))
        def rows(params: dict[str, Any] | None = None) -> list[dict[str, str]]:
            return [{"topic": topic} for topic in (params or {})["topics"]]

        CrewKickoffOperator.partial(
            task_id="crew",
            crew_conn_id="{{ params.crew }}",
            wait_for_completion=True,
            deferrable=deferrable,
            poll_interval=1,
            retries=9,
            retry_delay=timedelta(seconds=1),
        ).expand(inputs=rows())
