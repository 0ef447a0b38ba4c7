"""Runs that are open while the provider is replaced by a newer one, so only with what release 0.2.0 had."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.task_groups.crew import crew_with_review

COMMON: dict[str, Any] = {
    "schedule": None,
    "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
    "catchup": False,
}
CREW: dict[str, Any] = {"crew_conn_id": "crew_open_runs", "poll_interval": 1}

with DAG("open_group", **COMMON):
    crew_with_review(group_id="crew", inputs={"topic": "tea"}, **CREW)

with DAG("open_kickoff", **COMMON):
    more: dict[str, Any] = {"inputs": {"topic": "tea", "review": "no"}, "wait_for_completion": True, "deferrable": True}
    CrewKickoffOperator(task_id="kickoff", **more, **CREW)
