"""The DAGs for the screenshots in docs/review.md: an edited draft with an escalation, and rounds in a loop."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_crew_provider.compat.version import has_loops
from airflow_crew_provider.task_groups.crew import crew_with_review

COMMON: dict[str, Any] = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}

with DAG("review_pictures", **COMMON):
    crew_with_review(
        group_id="article",
        inputs={"topic": "tea"},
        max_rounds=3,
        poll_interval=1,
        review={
            "allow_edit": True,
            "assigned_users": ["admin"],
            "escalate": [(timedelta(seconds=30), "boss")],
            "response_timeout": timedelta(days=1),
        },
    )

if has_loops():
    with DAG("loop_pictures", **COMMON):
        crew_with_review(group_id="article", inputs={"topic": "tea"}, max_rounds=3, poll_interval=1, loop=True)
