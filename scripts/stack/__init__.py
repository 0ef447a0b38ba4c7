"""Runs a real Airflow and a real crew service as processes, for the demo, the tests and the benchmarks.

with AirflowStack(dags=[Path("example_dags")]) as airflow:
    run = airflow.api.trigger("crew_review")
    run.wait_for("success")
"""

from __future__ import annotations

from scripts.stack.airflow import AirflowStack
from scripts.stack.crew import CrewService
from scripts.stack.ports import free_port
from scripts.stack.processes import Component, ProcessGroup
from scripts.stack.rest import AirflowApi
from scripts.stack.runs import DagRun
from scripts.stack.waiting import StackTimeout, wait_until

__all__ = [
    "AirflowApi",
    "AirflowStack",
    "Component",
    "CrewService",
    "DagRun",
    "ProcessGroup",
    "StackTimeout",
    "free_port",
    "wait_until",
]
