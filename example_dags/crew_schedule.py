"""Run a crew once a day, without holding a worker slot while it runs."""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_crew_provider.operators.crew import CrewKickoffOperator

with DAG(
    dag_id="crew_schedule",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["crew"],
    doc_md=__doc__,
):
    CrewKickoffOperator(
        task_id="daily_briefing",
        inputs={"topic": "the news of {{ dag_run.run_after | ds }}", "review": "no"},
        wait_for_completion=True,
        deferrable=True,
        timeout=3600,
        retries=2,  # safe: a retry reattaches to the same execution
    )
