"""A kickoff that a retry policy of Airflow 3.4 runs again under the same try number."""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_crew_provider.compat.version import has_form_per_attempt
from airflow_crew_provider.operators.crew import CrewKickoffOperator

if has_form_per_attempt():  # Airflow 3.4
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryAction, RetryRule

    AGAIN = RetryRule(
        exception="airflow_crew_provider.wait.outcomes.CrewTryFailed",
        action=RetryAction.RESCHEDULE,
        retry_delay=timedelta(seconds=1),
        max_reschedules=20,
    )
    with DAG(
        "rescheduled",
        schedule=None,
        start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
        catchup=False,
        params={"crew": Param("crew_default", type="string"), "topic": Param("tea", type="string")},
    ):
        CrewKickoffOperator(
            task_id="crew",
            crew_conn_id="{{ params.crew }}",
            inputs={"topic": "{{ params.topic }}"},
            wait_for_completion=True,
            deferrable=False,
            poll_interval=1,
            timeout=2,
            cancel_on_kill=False,
            retries=0,
            retry_policy=ExceptionRetryPolicy(rules=[AGAIN]),
        )
