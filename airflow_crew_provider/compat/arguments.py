"""The arguments of Airflow's base classes, so that type checkers find misspelled ones.

Written by `python -m scripts.arguments` from Airflow 3.3.2; older versions reject newer arguments when they parse
the DAG file.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Required, TypedDict

from airflow_crew_provider.models import Json


class TaskOptions(TypedDict, total=False):
    """Arguments of every task, whether it uses a decorator or an operator."""

    owner: str
    email: str | Sequence[str] | None
    email_on_retry: bool
    email_on_failure: bool
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    retry_policy: Any
    start_date: datetime | None
    end_date: datetime | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    dag: Any
    params: MutableMapping[str, Any] | None
    default_args: dict[str, Any] | None
    priority_weight: int
    weight_rule: Any
    queue: str
    pool: str | None
    pool_slots: int
    sla: timedelta | None
    execution_timeout: timedelta | None
    on_execute_callback: Any
    on_failure_callback: Any
    on_success_callback: Any
    on_retry_callback: Any
    on_skipped_callback: Any
    pre_execute: Any
    post_execute: Any
    trigger_rule: str
    resources: dict[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict[str, Any] | None
    do_xcom_push: bool
    inlets: Any
    outlets: Any
    task_group: Any
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    task_display_name: str | None
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


class TaskArguments(TaskOptions, total=False):
    """Arguments of every operator."""

    task_id: Required[str]
    multiple_outputs: bool


class DecoratorArguments(TaskOptions, total=False):
    """Arguments of every decorator; the task id may come from the function."""

    task_id: str


class WaitArguments(TaskArguments, total=False):
    """Arguments of operators and sensors that wait, from their base class."""

    output_schema: Json | str | type | None
    max_total_tokens: int | None
    max_cost: float | None
    on_unknown_usage: str
    stop_over_budget: bool
    output_to: str | None
    files_to: str | None


class StartArguments(WaitArguments, total=False):
    """Arguments of every operator that starts an execution, as `CrewKickoffOperator` documents them."""

    inputs: Required[Any]
    files: Any
    webhooks: Any
    meta: Any
    restore_from: Any
    check_inputs: bool
    poll_in_worker: float | str | timedelta
    poll_interval: float | str | timedelta
    timeout: float | str | timedelta | None
    cancel_on_kill: bool
    on_unknown_outcome: str
    retry_from: str


class SensorArguments(WaitArguments, total=False):
    """Arguments of sensors, except ``poke_interval``."""

    timeout: timedelta | float | None
    soft_fail: bool
    mode: str
    exponential_backoff: bool
    max_wait: timedelta | float | None
    silent_fail: bool
    never_fail: bool


class QuestionArguments(TaskArguments, total=False):
    """Arguments of tasks that ask a person a question."""

    notifiers: Any
    defaults: str | list[str] | None
