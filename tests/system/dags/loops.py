"""Rounds of a review as a Task Loop, and the same rounds one after another; empty before Airflow 3.4."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
import requests
from airflow.providers.common.compat.sdk import DAG, BaseHook

from airflow_crew_provider.compat.version import has_loops
from airflow_crew_provider.task_groups.crew import crew_with_review

COMMON: dict[str, Any] = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
CREW: dict[str, Any] = {"group_id": "crew", "inputs": {"topic": "tea"}, "crew_conn_id": "crew_loop", "poll_interval": 1}
LOST = "crew_lost_rounds"


def knock(context: Any, *_: Any) -> None:
    """Let the test hold this task, and kill it there."""
    requests.get(f"{BaseHook.get_connection(LOST).host}/{context['ti'].task_id}", timeout=120)


if has_loops():
    for dag_id, is_loop in (("rounds_in_a_loop", True), ("rounds_in_a_row", False)):
        with DAG(dag_id, **COMMON):
            crew_with_review(**CREW, max_rounds=3, review={"allow_edit": True}, loop=is_loop)

    with DAG("loop_not_needed", **COMMON):
        crew_with_review(**{**CREW, "inputs": {"topic": "tea", "review": "no"}}, max_rounds=3, loop=True)

    with DAG("loop_too_short", **COMMON):
        crew_with_review(**CREW, max_rounds=1, loop=True)

    with DAG("loop_of_webhooks", **COMMON):
        slow = {**CREW, "crew_conn_id": "crew_loop_inbox", "poll_interval": 600, "webhooks": "inbox"}
        crew_with_review(**slow, max_rounds=3, loop=True)

    with DAG("rounds_lost", default_args={"retries": 5, "retry_delay": timedelta(0)}, **COMMON) as lost:
        shown: dict[str, Any] = {"allow_edit": True, "notifiers": [knock], "post_execute": knock}
        crew_with_review(**{**CREW, "crew_conn_id": LOST}, max_rounds=3, review=shown, loop=True)
        lost.get_task("crew.round.until_completed").pre_execute = knock  # type: ignore[method-assign]
