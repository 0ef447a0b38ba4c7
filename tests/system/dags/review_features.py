"""What a review may do beside asking once: an edited draft, escalation, two approvers."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, BaseNotifier

from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.task_groups.crew import crew_with_review

log = logging.getLogger(__name__)

COMMON: dict[str, Any] = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
CREW: dict[str, Any] = {
    "group_id": "crew",
    "inputs": {"topic": "tea"},
    "poll_interval": 1,
    "crew_conn_id": "crew_editor",
}

with DAG("review_edit", **COMMON):
    crew_with_review(**CREW, max_rounds=2, review={"allow_edit": True})

with DAG("review_edit_json", **COMMON):
    crew_with_review(**{**CREW, "crew_conn_id": "crew_json_editor"}, max_rounds=2, review={"allow_edit": True})

PENDING = {"state": "pending", "execution_id": "execution-1", "crew_task_id": "draft_task", "output": "A draft."}
with DAG("review_escalation", **COMMON):
    CrewReviewOperator(
        task_id="review", pending=PENDING, assigned_users=["rita"], escalate=[(timedelta(seconds=30), "admin")]
    )


class Notice(BaseNotifier):
    """Both steps of an escalation have a notifier of this class, with the same argument."""

    template_fields = ("told",)

    def __init__(self, told: str) -> None:
        super().__init__()
        self.told = told

    def notify(self, context: Any) -> None:
        log.info("Notice to %s", self.told)


with DAG("review_two_steps", **COMMON):
    BOTH = [
        (timedelta(seconds=20), ["admin", Notice("the team")]),
        (timedelta(seconds=20), ["boss", Notice("the team")]),
    ]
    CrewReviewOperator(task_id="review", pending=PENDING, assigned_users=["rita"], escalate=BOTH)

with DAG("review_approvals", **COMMON):
    CrewReviewOperator(task_id="review", pending=PENDING, approvals=2)
