"""What people get wrong, each as a DAG of its own: a kickoff and a wait that must end in one clear line."""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

TEA = {"topic": "tea"}
CASES = {
    "missing_input": ("crew_plain", {}),
    "wrong_token": ("crew_wrong_token", TEA),
    "unknown_connection": ("crew_nowhere", TEA),
    "service_down": ("crew_down", TEA),
    "crew_fails": ("crew_failing", TEA),
}

for name, (connection, inputs) in CASES.items():
    with DAG(dag_id=name, schedule=None, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), catchup=False):
        kickoff = CrewKickoffOperator(task_id="kickoff", crew_conn_id=connection, inputs=inputs)
        CrewStatusSensor(
            task_id="wait",
            crew_conn_id=connection,
            kickoff_id=kickoff.output,
            poke_interval=1,
            deferrable=True,
        )
