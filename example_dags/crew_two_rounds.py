"""A release note with up to two rounds of review: Rita decides, may edit the text, and has a deadline.

If she has not answered after four hours, Admin may answer too; after two days, the run fails and the execution stays
paused. If she edits the text before she approves it, the edited text becomes the output. Needs Airflow 3.1 or newer.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_crew_provider.task_groups.crew import crew_with_review

# User ids in this Airflow. The escalation below also takes notifiers, such as `CrewReviewNotifier(...)`.
WRITER, DEPUTY = "rita", "admin"
PATIENCE = timedelta(seconds=float(os.environ.get("CREW_EXAMPLE_PATIENCE", 4 * 3600)))

with DAG(
    dag_id="crew_two_rounds",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"topic": Param("release 2.0", type="string", description="What the note is about")},
    tags=["crew", "review"],
    doc_md=__doc__,
):
    note = crew_with_review(
        group_id="note",
        inputs={"topic": "{{ params.topic }}"},
        max_rounds=2,
        poll_interval=1,
        review={
            "assigned_users": [WRITER],
            "escalate": [(PATIENCE, [DEPUTY])],
            "response_timeout": timedelta(days=2),
            "allow_edit": True,
        },
    )

    @task
    def publish(record: dict[str, Any]) -> str:
        """Print the note; a real task would publish it."""
        print(record["output"])  # noqa: T201 - the point of this example
        return record["output"]

    publish(note.output)
