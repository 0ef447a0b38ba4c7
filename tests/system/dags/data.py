"""Crews whose output must match a schema: what is sent back in a mapped group, and keys that are XComs of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, task, task_group

from airflow_crew_provider.task_groups.crew import crew_with_review

COMMON = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
TOTALS = {"type": "object", "required": ["total"], "properties": {"total": {"type": "number"}}}

with DAG("data_revisions", **COMMON):

    @task
    def totals() -> list[dict[str, str]]:
        """What each crew writes at first, and after a revision."""
        written = [("1", "2"), ('"one"', "2"), ('"one"', '"two"')]
        return [{"first": first, "second": second, "review": "yes"} for first, second in written]

    @task_group
    def report(inputs: dict[str, Any]) -> None:
        crew_with_review(
            group_id="crew",
            inputs=inputs,
            max_rounds=2,
            crew_conn_id="crew_totals",
            poll_interval=1,
            output_schema=TOTALS,
            on_schema_mismatch="revise",
        )

    report.expand(inputs=totals())

with DAG("data_keys", **COMMON):

    @task.crew(
        crew_conn_id="crew_totals",
        deferrable=True,
        poll_interval=1,
        output_schema=TOTALS,
        multiple_outputs=True,
        retries=2,  # Airflow may fail a task that resumes before the scheduler has recorded its deferral
        retry_delay=timedelta(seconds=1),
    )
    def count(first: str) -> dict[str, str]:
        return {"first": first, "second": "0", "review": "no"}

    @task
    def double(total: int) -> int:
        return 2 * total

    double(count("21")["total"])
