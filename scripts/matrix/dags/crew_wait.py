"""A kickoff, a sensor that waits in the triggerer, and a task that uses the output."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

with DAG(
    dag_id="crew_wait",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    is_paused_upon_creation=False,
):
    kickoff = CrewKickoffOperator(task_id="kickoff", inputs={"topic": "tea", "review": "no"})
    wait = CrewStatusSensor(task_id="wait", kickoff_id=kickoff.output, poke_interval=1, deferrable=True)

    @task
    def use(record: dict[str, Any]) -> str:
        if record["state"] != "completed" or not record["output"]:
            raise ValueError(f"no output: {record}")
        return str(record["output"])

    use(wait.output)
