"""Reviews whose task is lost, whose notifier fails, and crews that do not ask."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.review.record import QuestionRecord
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.task_groups.crew import crew_with_review

COMMON = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
PENDING = {
    "state": "pending",
    "kickoff_id": "execution-1",
    "execution_id": "execution-1",
    "crew_task_id": "draft_task",
    "output": "A draft.",
    "tasks": [],
}


def broken(context: Any) -> None:
    raise RuntimeError("no mail server")


def deadly(context: Any) -> None:
    """Kill the first try of the task when its question is open."""
    if context["ti"].try_number == 1:
        os._exit(9)


class LostWhileAsking(CrewReviewOperator):
    """Its first try dies when Airflow has the question, before the task can write that down."""

    def execute(self, context: Any) -> Any:
        if context["ti"].try_number == 1:
            QuestionRecord.mark_asked = lambda *_, **__: os._exit(9)  # type: ignore[method-assign]
        return super().execute(context)


class LostWithAnswer(CrewReviewOperator):
    """Its first try dies when it comes back with the answer."""

    def execute_complete(self, context: Any, *arguments: Any, **more: Any) -> Any:
        if context["ti"].try_number == 1:
            os._exit(9)
        return super().execute_complete(context, *arguments, **more)


with DAG("review_notifier", **COMMON):
    CrewReviewOperator(task_id="review", pending=PENDING, notifiers=[broken])  # type: ignore[list-item]

with DAG("review_lost", **COMMON):
    CrewReviewOperator(
        task_id="review",
        pending=PENDING,
        notifiers=[deadly],  # type: ignore[list-item]
        retry_delay=timedelta(seconds=20),
    )

with DAG("review_lost_while_asking", **COMMON):
    LostWhileAsking(task_id="review", pending=PENDING, retry_delay=timedelta(seconds=20))

with DAG("review_lost_with_answer", **COMMON):
    LostWithAnswer(task_id="review", pending=PENDING, retry_delay=timedelta(seconds=2))

with DAG("review_edited", **COMMON):

    @task
    def wait() -> dict[str, Any]:
        return PENDING

    CrewReviewOperator(task_id="review", pending=wait())

# The first execution of a run asks a person, one after a clear does not.
with DAG("review_cleared", **COMMON):
    crew_with_review(
        group_id="crew",
        inputs={"topic": "try {{ ti.try_number }}", "review": "{{ 'yes' if ti.try_number == 1 else 'no' }}"},
        max_rounds=2,
        crew_conn_id="crew_asking",
        poll_interval=1,
    )

with DAG("review_not_needed", **COMMON):
    kickoff = CrewKickoffOperator(
        task_id="kickoff", inputs={"topic": "tea", "review": "no"}, crew_conn_id="crew_asking"
    )
    now = kickoff
    for number in (1, 2):
        waiting = CrewStatusSensor(
            task_id=f"wait_{number}", kickoff_id=now.output, execution_id=kickoff.output, crew_conn_id="crew_asking"
        )
        review = CrewReviewOperator(task_id=f"review_{number}", pending=waiting.output)
        now = CrewResumeOperator(task_id=f"resume_{number}", review=review.output, crew_conn_id="crew_asking")
    result = CrewStatusSensor(
        task_id="result", kickoff_id=now.output, wait_past_pending=True, crew_conn_id="crew_asking"
    )

    @task
    def data(record: dict[str, Any]) -> str:
        return record["output"]

    data(result.output)

# What a test edits while the form is open.
EDITED = Path(os.environ.get("AIRFLOW_HOME", "."), "terms_of_the_edited_review")
FIELDS: dict[str, Any] = {
    "score": Param(3, type="integer", minimum=1, maximum=5),
    "verdict": Param("good", type="string"),
}
with DAG("review_terms_edited", **COMMON):
    terms = json.loads(EDITED.read_text()) if EDITED.exists() else {"field": "score", "user": "admin"}
    CrewReviewOperator(
        task_id="review",
        pending=PENDING,
        params={terms["field"]: FIELDS[terms["field"]]},
        assigned_users=[terms["user"]],
    )
