"""Run a crew for each day, including missed ones, and write its JSON output to PostgreSQL.

Output that does not match the schema is not written. Each day has one row, which a rerun for that day replaces.

Serve the crew with `airflow-crew-service serve --crew example_dags/crews/daily_figures.json`. Point the connection
`crew_figures` at it, and `crew_warehouse` at the database. Needs apache-airflow-providers-postgres.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator

FIGURES = {
    "type": "object",
    "required": ["day", "mentions", "summary"],
    "additionalProperties": False,
    "properties": {
        "day": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        "mentions": {"type": "integer", "minimum": 0},
        "summary": {"type": "string", "minLength": 1},
    },
}
TABLE = """
CREATE TABLE IF NOT EXISTS daily_figures (
    day date PRIMARY KEY, mentions integer NOT NULL, summary text NOT NULL, execution_id text NOT NULL
)
"""

with DAG(
    dag_id="crew_to_postgres",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    end_date=pendulum.datetime(2026, 1, 3, tz="UTC"),  # omit this to keep running every day
    catchup=True,
    max_active_runs=2,  # limits how many missed days run at once
    tags=["crew", "data"],
    doc_md=__doc__,
):
    figures = CrewKickoffOperator(
        task_id="figures",
        crew_conn_id="crew_figures",
        inputs={"day": "{{ ds }}"},
        wait_for_completion=True,
        deferrable=True,
        poll_interval=1,
        timeout=timedelta(hours=1),
        output_schema=FIGURES,
        retries=2,  # safe: a retry reattaches to the same execution
        retry_delay=timedelta(seconds=30),
    )

    @task(retries=2)
    def load(record: dict[str, Any], ds: str | None = None) -> dict[str, Any]:
        """Insert or replace the day's row."""
        # Imported here so that the file can be parsed without the PostgreSQL provider.
        from airflow.providers.postgres.hooks.postgres import PostgresHook

        output = record["output"]
        if output["day"] != ds:
            raise ValueError(f"The crew wrote about {output['day']}, not about {ds}")
        warehouse = PostgresHook("crew_warehouse")
        # Without the lock, if the runs for two days created the table at the same time, one would fail.
        warehouse.run(["SELECT pg_advisory_xact_lock(hashtext('daily_figures'))", TABLE])
        row = {**output, "execution_id": record["execution_id"]}
        fields = list(row)
        warehouse.insert_rows(
            "daily_figures", [tuple(row.values())], target_fields=fields, replace=True, replace_index="day"
        )
        return row

    load(figures.output)
