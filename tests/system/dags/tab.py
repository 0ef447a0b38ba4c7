"""DAGs whose tab is looked at: a crew of three tasks, and a mapped one."""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.task_groups.crew import crew_with_review

START = pendulum.datetime(2026, 1, 1, tz="UTC")
WAITS = {"wait_for_completion": True, "deferrable": True, "poll_interval": 1}

with DAG("tab_three_tasks", schedule=None, start_date=START, catchup=False):
    CrewKickoffOperator(task_id="kickoff", inputs={"topic": "tea"}, crew_conn_id="crew_three", **WAITS)

with DAG("tab_mapped", schedule=None, start_date=START, catchup=False):
    CrewKickoffOperator.partial(
        task_id="letter",
        crew_conn_id="crew_plain",
        map_index_template="{{ task.inputs['topic'] }}",
    ).expand(inputs=[{"topic": f"Customer {number}"} for number in range(1, 21)])

with DAG("tab_fails", schedule=None, start_date=START, catchup=False):
    CrewKickoffOperator(task_id="kickoff", inputs={"topic": "tea"}, crew_conn_id="crew_failing", **WAITS)

# Two approvers cannot edit.
for name, review in {"approvals": {"approvals": 2}, "edit": {"allow_edit": True}}.items():
    with DAG(f"tab_{name}", schedule=None, start_date=START, catchup=False):
        crew_with_review(
            group_id="article",
            inputs={"topic": "tea"},
            max_rounds=2,
            poll_interval=1,
            crew_conn_id="crew_read",
            review=review,
        )
