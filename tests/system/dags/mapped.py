"""One crew for each topic of the run's configuration."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator

with DAG(
    dag_id="mapped",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"topics": Param([], type="array")},
):

    @task
    def rows(params: dict[str, Any] | None = None) -> list[dict[str, str]]:
        return [{"topic": topic} for topic in (params or {})["topics"]]

    CrewKickoffOperator.partial(
        task_id="crew",
        crew_conn_id="crew_plain",
        wait_for_completion=True,
        deferrable=True,
        poll_interval=1,
        retries=3,
        retry_delay=timedelta(seconds=1),
    ).expand(inputs=rows())
