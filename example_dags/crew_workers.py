"""Airflow as the engine of a crew: its workers run the executions, with their logs in Airflow.

A crew service started with `serve --no-work` takes the requests of other DAGs; this DAG runs what is queued. Install
`airflow-crew-service[crewai,postgresql]` beside the workers, and set `CREW_SERVICE_DB` in their environment, from a
secret: an argument of the task would appear in its rendered fields. The task ends after ten segments, or when nothing
has been queued for half a minute; if its worker is lost, another task continues its executions. On Kubernetes, use
`KubernetesPodOperator` with the same command and `secrets=`, for an image and resources of its own.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.common.compat.sdk import DAG, task

with DAG(
    dag_id="crew_workers",
    schedule=None,  # in production, timedelta(minutes=1)
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["crew", "jobs"],
    doc_md=__doc__,
):

    @task.bash(retries=0, execution_timeout=timedelta(hours=2))
    def work() -> str:
        return "airflow-crew-service work --crew demo --max-executions 10 --idle-exit 30"

    work()
