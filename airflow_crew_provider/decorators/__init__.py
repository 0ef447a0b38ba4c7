"""Airflow's `task`, whose `task.crew` editors and type checkers know by the stub beside this file."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import task

__all__ = ["task"]
