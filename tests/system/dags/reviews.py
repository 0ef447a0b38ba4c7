"""What reviews are tried with: a lone question, deadlines, two gates, a mapped group, and many people at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, task, task_group

from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.task_groups.crew import crew_with_review

COMMON = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
MANY = 12


def pending(output: Any, number: int = 0) -> dict[str, Any]:
    """Return the record of an execution waiting for a person."""
    return {
        "state": "pending",
        "kickoff_id": f"execution-{number}",
        "execution_id": f"execution-{number}",
        "crew_task_id": "draft_task",
        "output": output,
        "tasks": [],
    }


with DAG("review_one", params={"draft": "A draft.", "by_try": False}, **COMMON):

    @task
    def wait(params: dict[str, Any] | None = None, ti: Any = None) -> dict[str, Any]:
        text = (params or {})["draft"]
        return pending(f"{text} Try {ti.try_number}." if (params or {})["by_try"] else text)

    @task
    def publish(review: dict[str, Any]) -> dict[str, Any]:
        return review

    publish(CrewReviewOperator(task_id="review", pending=wait()).output)

with DAG("review_deadline", default_args={"retries": 2, "execution_timeout": timedelta(hours=1)}, **COMMON):
    # Longer than a busy scheduler takes to record that a task left its worker: Airflow fails one that resumes earlier.
    for name, policy in {"fail": "fail", "revise": {"revise": "Go on, but say less."}, "approve": "approve"}.items():
        CrewReviewOperator(
            task_id=name, pending=pending("A draft."), response_timeout=timedelta(seconds=20), on_timeout=policy
        )

with DAG("review_assigned", **COMMON):
    CrewReviewOperator(
        task_id="review", pending=pending("For Rita alone."), assigned_users=[{"id": "rita", "name": "rita"}]
    )

with DAG("review_gates", **COMMON):
    crew_with_review(group_id="crew", inputs={"topic": "tea"}, max_rounds=5, crew_conn_id="crew_gates", poll_interval=1)

with DAG("review_last_round", **COMMON):
    crew_with_review(
        group_id="crew", inputs={"topic": "tea"}, max_rounds=1, crew_conn_id="crew_scribe", poll_interval=1
    )

with DAG("review_interview", **COMMON):
    crew_with_review(
        group_id="crew", inputs={"topic": "tea"}, max_rounds=3, crew_conn_id="crew_interview", poll_interval=1
    )

for dag_id, rounds in (("review_mapped", 2), ("review_mapped_once", 1)):
    with DAG(dag_id, params={"topics": Param(["tea", "coffee"], type="array")}, **COMMON):

        @task
        def topics(params: dict[str, Any] | None = None) -> list[str]:
            return (params or {})["topics"]

        @task_group
        def article(topic: str, max_rounds: int = rounds) -> None:
            crew_with_review(
                group_id="crew",
                inputs={"topic": topic},
                max_rounds=max_rounds,
                crew_conn_id="crew_scribe",
                poll_interval=1,
            )

        article.expand(topic=topics())

with DAG("review_skipped", **COMMON):

    @task.short_circuit(ignore_downstream_trigger_rules=False)
    def wanted() -> bool:
        return False

    never = crew_with_review(group_id="crew", inputs={"topic": "tea"}, crew_conn_id="crew_scribe", max_rounds=1)
    wanted() >> never.get_child_by_label("kickoff")

with DAG("review_many", **COMMON):
    CrewReviewOperator.partial(task_id="review", pool="one_slot").expand(
        pending=[pending(f"Draft {number}.", number) for number in range(MANY)]
    )

with DAG("review_neighbour", **COMMON):

    @task(pool="one_slot")
    def work() -> str:
        return "done"

    work()
