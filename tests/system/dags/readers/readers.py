"""A draft that a person answers, so that its text is in what tasks keep; before Airflow 3.1, without asking."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, task

from airflow_crew_provider.compat.version import has_human_in_the_loop, has_inbox
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.stored_names import RUN_STATE
from airflow_crew_provider.task.record import PLAIN_OF_RUN
from airflow_crew_provider.task.store import record_of

with DAG(
    dag_id="readers",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    is_paused_upon_creation=False,
):
    crew = {"crew_conn_id": "crew_readers"}
    kickoff = CrewKickoffOperator(task_id="kickoff", inputs={"topic": "tea"}, **crew)
    wait = CrewStatusSensor(task_id="wait", kickoff_id=kickoff.output, poke_interval=1, mode="reschedule", **crew)

    @task
    def keep(ti: Any = None, **context: Any) -> None:
        """Keep texts as a task does that asks several times."""
        record = {"execution_id": "e-1", "review": ti.xcom_pull("wait")}
        record_of({**context, "ti": ti}).part(RUN_STATE, PLAIN_OF_RUN).keep(record)

    @task
    def decide(ti: Any = None) -> dict[str, Any]:
        record = ti.xcom_pull("wait")
        ids = {field: record[field] for field in ("execution_id", "crew_task_id")}
        return {**ids, "is_approve": True, "human_feedback": record["output"]}

    if has_human_in_the_loop():
        from airflow_crew_provider.operators.review import CrewReviewOperator

        review = CrewReviewOperator(task_id="review", pending=wait.output).output
    else:
        review = decide()
        wait >> review
    CrewResumeOperator(task_id="resume", review=review, **crew)
    if has_inbox():
        wait >> keep()
