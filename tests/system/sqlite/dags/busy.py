"""What keeps an Airflow on SQLite busy: tasks that write, a DAG that webhooks start, forms that a person answers."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, task
from airflow.sdk import Asset

from airflow_crew_provider.operators.review import CrewReviewOperator

COMMON = {"start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
TASKS, WRITES, FORMS = 20, 20, 40

with DAG("busy_tasks", schedule=None, **COMMON):

    @task
    def write(number: int, ti: Any = None) -> int:
        for each in range(WRITES):
            ti.xcom_push(f"key_{each}", number)
        return number

    write.expand(number=list(range(TASKS)))

with DAG("busy_webhooks", schedule=[Asset("crew://crew_busy/completed")], max_active_runs=2, **COMMON):

    @task
    def note() -> None:
        pass

    note()

# Never run: the test opens the forms.
with DAG("busy_forms", schedule=None, is_paused_upon_creation=True, **COMMON):
    CrewReviewOperator.partial(task_id="review").expand(
        pending=[
            {"state": "pending", "kickoff_id": f"k-{n}", "execution_id": f"k-{n}", "output": f"Draft {n}.", "tasks": []}
            for n in range(FORMS)
        ]
    )
