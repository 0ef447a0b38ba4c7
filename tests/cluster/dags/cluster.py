"""The shapes that the cluster test runs: plain, mapped, failing, reviewed, a Flow, and the loop that people write."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, BaseHook, Param, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.task_groups.crew import crew_with_review

TOPIC = "{{ params.topic }}"
COMMON: dict[str, Any] = {
    "schedule": None,
    "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
    "catchup": False,
    "max_active_runs": 12,
    "params": {"topic": Param("tea", type="string")},
    # By their rule, the last tasks of runs come first: else all of hundreds of runs would end at the very end.
    "default_args": {"retries": 9, "retry_delay": timedelta(seconds=2), "weight_rule": "upstream"},
}
WAIT: dict[str, Any] = {"wait_for_completion": True, "deferrable": True, "poll_interval": 2}
MAPPED = 10

with DAG("cluster_plain", **COMMON):

    @task
    def note(record: dict[str, Any]) -> str:
        return record["output"]

    note(CrewKickoffOperator(task_id="crew", crew_conn_id="crew_plain", inputs={"topic": TOPIC}, **WAIT).output)

with DAG("cluster_mapped", **COMMON):

    @task
    def rows(params: dict[str, Any] | None = None) -> list[dict[str, str]]:
        return [{"topic": f"{(params or {})['topic']}/{number}"} for number in range(MAPPED)]

    @task
    def collect(records: Any) -> int:
        return len(list(records))

    crews = CrewKickoffOperator.partial(task_id="crew", crew_conn_id="crew_plain", **WAIT).expand(inputs=rows())
    collect(crews.output)

with DAG("cluster_failing", **COMMON):
    kickoff = CrewKickoffOperator(task_id="kickoff", crew_conn_id="crew_failing", inputs={"topic": TOPIC})
    CrewStatusSensor(
        task_id="wait", crew_conn_id="crew_failing", kickoff_id=kickoff.output, deferrable=True, poke_interval=2
    )

for name in ("gated", "flow"):
    with DAG(f"cluster_{name}", **COMMON):

        @task
        def publish(record: dict[str, Any]) -> Any:
            return record["output"]

        crew = crew_with_review(
            group_id="crew", inputs={"topic": TOPIC}, crew_conn_id=f"crew_{name}", max_rounds=3, poll_interval=2
        )
        publish(crew.output)

with DAG("cluster_naive", **COMMON):

    @task(retries=3)
    def crew_by_hand(params: dict[str, Any] | None = None) -> str:
        """Start a crew and ask for its status until it is over, as people write it."""
        import requests

        connection = BaseHook.get_connection("crew_plain")
        headers = {"Authorization": f"Bearer {connection.password}"}
        inputs = {"topic": (params or {})["topic"]}
        answer = requests.post(f"{connection.host}/kickoff", json={"inputs": inputs}, headers=headers)
        kickoff_id = answer.json()["kickoff_id"]
        while True:
            status = requests.get(f"{connection.host}/status/{kickoff_id}", headers=headers).json()
            if status["status"] == "completed":
                return status["result"]["output"]
            time.sleep(2)

    crew_by_hand()
