"""A crew that asks in the middle of its task and has its report reviewed: in rounds, and in one task of Airflow 3.4."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_crew_provider.compat.version import has_form_per_attempt, has_human_in_the_loop

COMMON: dict[str, Any] = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
CREW: dict[str, Any] = {"inputs": {"topic": "tea tasting"}, "crew_conn_id": "crew_invitations", "poll_interval": 1}
REVIEW: dict[str, Any] = {"allow_edit": True, "response_timeout": timedelta(days=1)}

if has_human_in_the_loop():
    from airflow_crew_provider.task_groups.crew import crew_with_review

    with DAG("invitations_in_rounds", **COMMON):
        crew_with_review(**CREW, group_id="crew", max_rounds=5, review=REVIEW)

if has_form_per_attempt():
    from airflow_crew_provider.operators.run import CrewRunOperator

    with DAG("invitations_in_one_task", **COMMON):
        CrewRunOperator(**CREW, **REVIEW, task_id="crew")
