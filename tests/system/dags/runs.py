"""Crews in one task, from the kickoff to the completed record; empty before Airflow 3.4."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, task

from airflow_crew_provider.compat.version import has_form_per_attempt

MANY = 50
COMMON: dict[str, Any] = {
    "schedule": None,
    "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
    "catchup": False,
    "default_args": {"retry_delay": timedelta(0)},
}
CREW: dict[str, Any] = {
    "task_id": "crew",
    "inputs": {"topic": "tea"},
    "crew_conn_id": "crew_one_task",
    "poll_interval": 1,
}


def nobody_answered(context: Any) -> None:
    """Stands for a notifier: with an escalation, Airflow leaves the form open at its deadline."""


if has_form_per_attempt():
    from airflow_crew_provider.operators.run import CrewRunOperator

    with DAG("one_task", **COMMON):
        CrewRunOperator(**CREW, allow_edit=True, execution_timeout=timedelta(minutes=20))

    with DAG("one_task_deadline", **COMMON):
        CrewRunOperator(
            **CREW,
            response_timeout=timedelta(seconds=15),
            on_timeout={"revise": "Nobody answered."},
            escalate=[(timedelta(seconds=2), nobody_answered)],
        )

    with DAG("one_task_webhooks", **COMMON):
        slow: dict[str, Any] = {"crew_conn_id": "crew_one_task_inbox", "poll_interval": 600, "webhooks": "inbox"}
        CrewRunOperator(**{**CREW, **slow})

    with DAG("many_in_one_task_each", max_active_tasks=MANY, **COMMON):
        partial = CrewRunOperator.partial(**{name: value for name, value in CREW.items() if name != "inputs"})
        partial.expand(inputs=[{"topic": f"tea {number}"} for number in range(MANY)])

    with DAG("neighbour_of_many", **COMMON):

        @task
        def work() -> str:
            return "done"

        work()
