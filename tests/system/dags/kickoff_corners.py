"""Kickoffs whose retries render other inputs, and one whose `retries` a test edits."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_crew_provider.operators.crew import CrewKickoffOperator

PARAMS = {"crew": Param("crew_default", type="string"), "topic": Param("tea", type="string")}
EDITED = Path(os.environ.get("AIRFLOW_HOME", "."), "retries_of_the_edited_kickoff")
CREW = {"crew_conn_id": "{{ params.crew }}"}


def dag(dag_id: str) -> DAG:
    start = pendulum.datetime(2026, 1, 1, tz="UTC")
    return DAG(dag_id, schedule=None, start_date=start, catchup=False, params=PARAMS)


with dag("other_inputs_each_try"):
    CrewKickoffOperator(
        task_id="crew",
        inputs={"topic": "{{ params.topic }}", "try": "{{ ti.try_number }}"},
        wait_for_completion=True,
        poll_interval=1,
        cancel_on_kill=False,
        retries=5,
        retry_delay=timedelta(seconds=3),
        **CREW,
    )

with dag("edited_retries"):
    CrewKickoffOperator(
        task_id="crew",
        inputs={"topic": "{{ params.topic }}"},
        retries=int(EDITED.read_text()) if EDITED.exists() else 2,
        **CREW,
    )
