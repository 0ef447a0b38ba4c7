"""A Flow with two reviewers: one sends the text back until the facts are right, the other decides what to do with it.

Serve the Flow with `airflow-crew-service serve --crew example_dags/crews/briefing_flow.py:BriefingFlow`, and point the
connection `crew_flow` at it. Each review shows the Flow's question and a button for each of its outcomes. Needs Airflow
3.1 or newer.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_crew_provider.task_groups.crew import crew_with_review

with DAG(
    dag_id="crew_flow",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"topic": Param("heat pumps", type="string", description="What the briefing is about")},
    tags=["crew", "flow", "review"],
    doc_md=__doc__,
):
    briefing = crew_with_review(
        group_id="briefing",
        inputs={"topic": "{{ params.topic }}"},
        crew_conn_id="crew_flow",
        max_rounds=5,
        poll_interval=1,
    )

    @task
    def publish(record: dict[str, Any]) -> str:
        """Print the text; a real task would publish it."""
        print(record["output"])  # noqa: T201 - the point of this example
        return record["output"]

    publish(briefing.output)
