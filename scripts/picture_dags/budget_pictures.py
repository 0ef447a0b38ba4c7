"""The DAG whose second run meets a budget that is used up."""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_crew_provider.operators.crew import CrewKickoffOperator

with DAG("daily_article", schedule=None, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), catchup=False):
    CrewKickoffOperator(task_id="write", crew_conn_id="crew_limited", inputs={"topic": "tea"})
