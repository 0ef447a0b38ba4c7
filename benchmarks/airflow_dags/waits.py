"""A wait that lasts for hours, and crews followed by a task; for the benchmarks on Airflow's processes."""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

COMMON = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}

with DAG("many_waits", **COMMON):
    CrewStatusSensor(task_id="wait", kickoff_id="wait-0", deferrable=True, poke_interval=30)

WAITS = {
    "polled": {"poll_interval": 5},
    "in_worker": {"poll_interval": 5, "poll_in_worker": 20},
    "woken": {"poll_interval": 600, "webhooks": "inbox"},
}
for name, how in WAITS.items():
    with DAG(f"crew_{name}", **COMMON):

        @task
        def after(record: object) -> None:
            """Do nothing; the benchmark measures when this task starts."""

        crew = CrewKickoffOperator(
            task_id="crew",
            inputs={"seconds": "{{ dag_run.conf['seconds'] }}", "number": "{{ dag_run.conf['number'] }}"},
            wait_for_completion=True,
            deferrable=True,
            **how,
        )
        after(crew.output)
