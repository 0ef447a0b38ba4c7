"""TaskFlow style: a function returns the crew's inputs, and the task returns the completed record."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import Param, dag, task


@dag(
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"topic": Param("tea", type="string")},
    tags=["crew", "taskflow"],
    doc_md=__doc__,
)
def crew_taskflow():
    """Look up a topic, run a crew on it, and use its output."""

    @task
    def look_up(params: dict[str, Any] | None = None) -> str:
        return (params or {})["topic"].strip()

    @task.crew(deferrable=True, poll_interval=1, retries=2)
    def write(topic: str) -> dict[str, str]:
        return {"topic": topic, "review": "no"}

    @task
    def first_line(record: dict[str, Any]) -> str:
        return str(record["output"]).splitlines()[0]

    first_line(write(look_up()))


crew_taskflow()
