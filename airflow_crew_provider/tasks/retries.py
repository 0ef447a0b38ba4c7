"""How often a task is tried again that loses nothing by it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_crew_provider.models import Json

RETRIES = 2


def at_least(default_args: Mapping[str, Any] | None, delay: timedelta) -> Json:
    """Return the arguments of a task: two retries, or what the ``default_args`` of its DAG say if they say more.

    :param delay: between two tries, where ``default_args`` has none
    """
    given = default_args or {}
    return {"retries": max(RETRIES, given.get("retries") or 0), "retry_delay": given.get("retry_delay", delay)}
