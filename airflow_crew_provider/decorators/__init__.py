"""Airflow's `task`; the stub next to this file describes `task.crew` to editors and type checkers."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import task

__all__ = ["task"]
