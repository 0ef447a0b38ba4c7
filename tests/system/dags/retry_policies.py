"""Kickoffs whose retries a policy of Airflow decides; from 3.4 on, it may run a try again under its number."""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param

from airflow_crew_provider.compat.version import has_form_per_attempt
from airflow_crew_provider.exceptions import CrewRateLimited
from airflow_crew_provider.operators.crew import CrewKickoffOperator

try:
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryAction, RetryRule
except ImportError:  # before Airflow 3.3
    RetryRule = None
COMMON = {
    "schedule": None,
    "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
    "catchup": False,
    "params": {"crew": Param("crew_default", type="string"), "topic": Param("tea", type="string")},
}
CREW = {"task_id": "crew", "crew_conn_id": "{{ params.crew }}", "inputs": {"topic": "{{ params.topic }}"}}

if RetryRule:
    from airflow_crew_provider.retries import WaitForBudget

    with DAG("waits_for_budget", **COMMON):
        CrewKickoffOperator(**CREW, retries=1, retry_delay=timedelta(hours=1), retry_policy=WaitForBudget())
    give_up = RetryRule(exception=CrewRateLimited, action=RetryAction.FAIL)
    with DAG("refused_for_good", **COMMON):
        CrewKickoffOperator(**CREW, retries=3, retry_policy=ExceptionRetryPolicy(rules=[give_up]))

if has_form_per_attempt():
    again = RetryRule(
        exception="airflow_crew_provider.wait.outcomes.CrewTryFailed",
        action=RetryAction.RESCHEDULE,
        retry_delay=timedelta(seconds=1),
        max_reschedules=20,
    )
    with DAG("rescheduled", **COMMON):
        CrewKickoffOperator(
            **CREW,
            wait_for_completion=True,
            deferrable=False,
            poll_interval=1,
            timeout=2,
            cancel_on_kill=False,
            retries=0,
            retry_policy=ExceptionRetryPolicy(rules=[again]),
        )
