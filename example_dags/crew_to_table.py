"""Write the crew's output to a table, update an asset, and query the table in a later task.

The table is in a SQLite file, so that the example runs as is; in production, use your warehouse.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Asset, Param, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator

DATABASE = Path(os.environ.get("CREW_EXAMPLE_DB", Path(tempfile.gettempdir(), "crew_example.db")))
briefings = Asset("crew_briefings")

with DAG(
    dag_id="crew_to_table",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"topic": Param("tea", type="string")},
    tags=["crew", "data"],
    doc_md=__doc__,
):
    crew = CrewKickoffOperator(
        task_id="crew",
        inputs={"topic": "{{ params.topic }}", "review": "no"},
        wait_for_completion=True,
        deferrable=True,
        poll_interval=1,
        retries=2,  # safe: a retry reattaches to the same execution
    )

    @task(outlets=[briefings])
    def store(record: dict[str, Any]) -> int:
        """Store each task's output as a row; storing an execution again replaces its rows."""
        rows = [(record["execution_id"], each["task_id"], each["output"]) for each in record["tasks"]]
        with closing(sqlite3.connect(DATABASE)) as connection, connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS briefing"
                " (execution_id TEXT, task_id TEXT, output TEXT, PRIMARY KEY (execution_id, task_id))"
            )
            connection.executemany("INSERT OR REPLACE INTO briefing VALUES (?, ?, ?)", rows)
        return len(rows)

    @task
    def count_words(record: dict[str, Any], stored: int) -> dict[str, int]:
        """Query the stored rows."""
        with closing(sqlite3.connect(DATABASE)) as connection:
            found = connection.execute(
                "SELECT task_id, output FROM briefing WHERE execution_id = ?", (record["execution_id"],)
            ).fetchall()
        assert len(found) == stored
        return {task_id: len(output.split()) for task_id, output in found}

    count_words(crew.output, store(crew.output))
