"""The operators that start an execution and answer one that is waiting for a person."""

from __future__ import annotations

from airflow_crew_provider.operators.kickoff import CrewKickoffOperator
from airflow_crew_provider.operators.resume import CrewResumeOperator

__all__ = ["CrewKickoffOperator", "CrewResumeOperator"]
