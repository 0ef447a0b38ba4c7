"""Airflow's `task`, with a stub next to this file that describes `task.crew` to editors and type checkers."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import task

__all__ = ["task"]
