"""Run one crew per row of input, using dynamic task mapping. No worker slot is held while the crews run."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator

with DAG(
    dag_id="crew_per_row",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"topics": Param(["tea", "rice", "salt"], type="array", items={"type": "string"})},
    tags=["crew", "mapping"],
    doc_md=__doc__,
):

    @task
    def rows(params: dict[str, Any] | None = None) -> list[dict[str, str]]:
        """Read the rows, in this example from the run's parameters."""
        return [{"topic": topic, "review": "no"} for topic in (params or {})["topics"]]

    crews = CrewKickoffOperator.partial(
        task_id="crew",
        wait_for_completion=True,
        deferrable=True,
        poll_interval=1,
        retries=2,  # safe: a retry reattaches to the same execution
    ).expand(inputs=rows())

    @task
    def collect(records: list[dict[str, Any]]) -> list[str]:
        """Collect the outputs in the order of the rows."""
        return [record["output"] for record in records]

    collect(crews.output)
