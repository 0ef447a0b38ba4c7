"""One task, whose crew fails before it succeeds."""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_crew_provider.operators.crew import CrewKickoffOperator

NAMES = ("case", "log", "trouble")  # inputs of the crew

with DAG(
    "continued",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={name: Param("", type="string") for name in ("crew", *NAMES)},
):
    CrewKickoffOperator(
        task_id="crew",
        inputs={name: f"{{{{ params.{name} }}}}" for name in NAMES},
        crew_conn_id="{{ params.crew }}",
        wait_for_completion=True,
        deferrable=True,
        poll_interval=1,
        retries=2,
        retry_delay=timedelta(seconds=1),
    )
