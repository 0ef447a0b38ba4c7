"""Many crews that wait for a person, announced only by webhook; a parameter of the run sets their number."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

with DAG(
    dag_id="inbox_wake",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_tasks=1000,
    params={"waits": Param(100, type="integer")},
):

    @task
    def numbers(params: dict[str, Any] | None = None) -> list[dict[str, str]]:
        return [{"number": str(number)} for number in range((params or {})["waits"])]

    kickoff = CrewKickoffOperator.partial(task_id="kickoff", webhooks="inbox").expand(inputs=numbers())
    # Polling is so slow that only a webhook can end a wait within the benchmark.
    CrewStatusSensor.partial(task_id="wait", deferrable=True, poke_interval=3600).expand(kickoff_id=kickoff.output)
