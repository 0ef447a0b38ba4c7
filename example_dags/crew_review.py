"""A crew writes a draft, a person approves it or asks for a revision in Airflow, and a data task uses the result.

No worker slot is held while the crew works or the person decides. Needs Airflow 3.1 or newer.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_crew_provider.task_groups.crew import crew_with_review

with DAG(
    dag_id="crew_review",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"topic": Param("tea", type="string", description="What the crew writes about")},
    tags=["crew", "review"],
    doc_md=__doc__,
):
    article = crew_with_review(
        group_id="article",
        inputs={"topic": "{{ params.topic }}"},
        max_rounds=3,
        poll_interval=1,
    )

    @task
    def publish(record: dict[str, Any]) -> str:
        """Print the approved text; a real task would publish it."""
        print(record["output"])  # noqa: T201 - the point of this example
        return record["output"]

    publish(article.output)
