"""Crews that tell by webhook that they wait for a person; their status says nothing of it (live dialect)."""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Variable, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.task_groups.crew import crew_with_review

COMMON = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
LIVE = {"crew_conn_id": "crew_inbox", "webhooks": "inbox", "inputs": {"topic": "tea"}}
# So slow that only a webhook can be the reason for a wait that ends within seconds.
SLOW = 600

with DAG("inbox_review", **COMMON):
    crew_with_review(group_id="crew", max_rounds=2, poll_interval=SLOW, **LIVE)

with DAG("inbox_cancel", **COMMON):
    kickoff = CrewKickoffOperator(task_id="kickoff", **{**LIVE, "crew_conn_id": "crew_inbox_late"})
    CrewStatusSensor(
        task_id="wait",
        kickoff_id=kickoff.output,
        crew_conn_id="crew_inbox_late",
        deferrable=True,
        poke_interval=SLOW,
        cancel_on_kill=True,
    )

with DAG("inbox_after_the_fact", **COMMON):

    @task.sensor(poke_interval=1, timeout=120)
    def pause() -> bool:
        """Hold the wait back until the question has arrived."""
        return Variable.get("inbox_go", None) is not None

    kickoff = CrewKickoffOperator(task_id="kickoff", **LIVE)
    wait = CrewStatusSensor(task_id="wait", kickoff_id=kickoff.output, crew_conn_id="crew_inbox", deferrable=True)
    kickoff >> pause() >> wait

FLOW = "crew_inbox_flow"
with DAG("inbox_flow", **COMMON):
    kickoff = CrewKickoffOperator(task_id="kickoff", crew_conn_id=FLOW, inputs={"topic": "tea"})
    wait = CrewStatusSensor(
        task_id="wait", kickoff_id=kickoff.output, crew_conn_id=FLOW, deferrable=True, poke_interval=SLOW
    )
    review = CrewReviewOperator(task_id="review", pending=wait.output, crew_conn_id=FLOW)
    CrewResumeOperator(task_id="resume", review=review.output, crew_conn_id=FLOW)

with DAG("inbox_lost_answer", **COMMON):
    lost = {**LIVE, "crew_conn_id": "crew_inbox_lossy"}
    crew_with_review(group_id="crew", max_rounds=2, poll_interval=2, **lost)
