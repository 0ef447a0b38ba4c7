"""A PDF in a bucket becomes a report and a chart in a bucket, once a person has approved them.

Serve the crew with `airflow-crew-service serve --crew example_dags/crews/report_crew.py:report_crew`, and point the
connection `crew_files` at it. The buckets are local folders unless `CREW_EXAMPLE_FIGURES` and `CREW_EXAMPLE_BUCKET`
name others, such as `s3://reports`. Needs Airflow 3.1 or newer.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Asset, task

from airflow_crew_provider.task_groups.crew import crew_with_review

FIGURES = os.environ.get("CREW_EXAMPLE_FIGURES") or f"file://{Path(__file__).parent / 'files' / 'sales.pdf'}"
BUCKET = os.environ.get("CREW_EXAMPLE_BUCKET") or f"file://{tempfile.gettempdir()}/crew-reports"
REPORTS = Asset("crew-reports")
COMMON: dict[str, Any] = {
    "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
    "catchup": False,
    "tags": ["crew", "files", "review"],
    "doc_md": __doc__,
}

with DAG("crew_files", schedule=None, **COMMON):
    crew_with_review(
        group_id="report",
        crew_conn_id="crew_files",
        inputs={},
        files={"figures": FIGURES},
        files_to=f"{BUCKET}/{{{{ run_id }}}}/",
        outlets=[REPORTS],
        max_rounds=3,
        poll_interval=1,
    )

with DAG("crew_files_arrived", schedule=[REPORTS], **COMMON):

    @task
    def arrived(triggering_asset_events: Any = None) -> list[str]:
        """Return the paths of the new files; a real task would load or mail them."""
        events = [event for each in triggering_asset_events.values() for event in each]
        return [path for event in events for path in event.extra["files"]]

    arrived()
