"""The operators that start an execution and send a person's answer to it."""

from __future__ import annotations

from airflow_crew_provider.operators.kickoff import CrewKickoffOperator
from airflow_crew_provider.operators.resume import CrewResumeOperator

__all__ = ["CrewKickoffOperator", "CrewResumeOperator"]
