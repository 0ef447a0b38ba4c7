"""Default retries, also for mapped tasks, which Airflow creates without calling their operator's `__init__`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import conf

from airflow_crew_provider.models import Json

RETRIES = 2
DELAY = timedelta(seconds=10)


def at_least(default_args: Mapping[str, Any] | None, retries: int = RETRIES, delay: timedelta = DELAY) -> Json:
    """Return arguments for a task: this many retries, or more if ``default_args`` or Airflow's configuration say so.

    :param delay: the delay between tries, if ``default_args`` do not set one
    """
    defaults = default_args or {}
    configured = conf.getint("core", "default_task_retries", fallback=0)
    return {
        "retries": max(retries, int(defaults.get("retries", configured) or 0)),
        "retry_delay": defaults.get("retry_delay", delay),
    }


def mapped_at_least(task: Any, kwargs: Json, retries: int = RETRIES) -> Any:
    """Return what an operator's ``partial`` returned, with the same arguments as from `at_least`.

    :param kwargs: the arguments of ``partial``
    """
    arguments: Json = task.kwargs
    owners = [each.default_args for each in (arguments.get("dag"), arguments.get("task_group")) if each]
    defaults = {name: value for each in (*owners, kwargs.get("default_args") or {}) for name, value in each.items()}
    if "retries" not in kwargs:
        arguments["retries"] = at_least(defaults, retries)["retries"]
    if "retry_delay" not in {*kwargs, *defaults}:
        arguments["retry_delay"] = DELAY
    return task
