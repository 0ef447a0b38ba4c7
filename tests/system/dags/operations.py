"""Crews whose metrics, lineage and events the tests follow: reviewed, metered, and not started by Airflow."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Asset, task
from airflow.providers.openlineage.utils.selective_enable import enable_lineage

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.task_groups.crew import crew_with_review

COMMON = {"start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
TEXT = Asset("x-texts://tea")

with DAG("operations_review", schedule=None, **COMMON) as review:
    crew_with_review(
        inputs={"topic": "tea"}, max_rounds=1, poll_interval=1, crew_conn_id="crew_reviewed", outlets=[TEXT]
    )
enable_lineage(review)

with DAG("operations_metered", schedule=None, **COMMON) as metered:
    crew = CrewKickoffOperator(
        task_id="crew",
        inputs={"topic": "tea"},
        crew_conn_id="crew_metered",
        wait_for_completion=True,
        deferrable=True,
        poll_interval=1,
        outlets=[TEXT],
    )
    CrewUsageApprovalOperator(task_id="allowed", completed=crew.output, max_total_tokens=1000, max_cost=0.25)
enable_lineage(metered)

with DAG(
    "operations_foreign_crew",
    schedule=[Asset("crew://crew_newsroom/completed")],
    is_paused_upon_creation=False,
    **COMMON,
):

    @task
    def completed(triggering_asset_events: Any = None) -> list[str]:
        """Return the ids of all executions that this run is about."""
        return [event.extra["kickoff_id"] for events in triggering_asset_events.values() for event in events]

    CrewStatusSensor.partial(task_id="record", crew_conn_id="crew_newsroom", deferrable=True).expand(
        kickoff_id=completed()
    )
