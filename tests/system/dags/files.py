"""Crews that get a PDF from object storage, and whose files are copied there."""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG, Asset, Param

from airflow_crew_provider.task_groups.crew import crew_with_review

for kind in ("crew", "flow"):
    with DAG(
        f"files_of_{kind}",
        schedule=None,
        start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
        catchup=False,
        params={"source": Param("", type="string"), "folder": Param("", type="string")},
    ):
        crew_with_review(
            group_id="report",
            crew_conn_id=f"files_{kind}",
            inputs={},
            files={"report": "{{ params.source }}"},
            files_to="{{ params.folder }}/{{ run_id }}/",
            outlets=[Asset(f"files_of_{kind}")],
            max_rounds=2,
            poll_interval=1,
        )
