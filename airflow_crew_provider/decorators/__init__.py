"""Airflow's `task`, with a stub beside this file that tells editors and type checkers about `task.crew`."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import task

__all__ = ["task"]
