"""What a type checker and an editor know of the operators, and of `@task.crew` by its stub."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import airflow
import pytest
from airflow.providers.common.compat.sdk import BaseOperator, BaseSensorOperator
from airflow.providers.common.compat.sdk import task as airflow_task

import airflow_crew_provider.decorators
from airflow_crew_provider.compat.arguments import SensorArguments, TaskArguments
from scripts import arguments
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("simulated_airflow")
USES = """
from datetime import timedelta
from typing import Any

from airflow.sdk import TriggerRule

from airflow_crew_provider.decorators import task
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

def told(context: Any) -> None: ...

kickoff = CrewKickoffOperator(
    task_id="kickoff", inputs={}, poll_interval=5, max_cost=1, multiple_outputs=True, retries=2, pool="crews",
    retry_delay=timedelta(minutes=1), trigger_rule=TriggerRule.ALL_DONE, execution_timeout=timedelta(hours=1),
    on_failure_callback=told, default_args={"owner": "ann"}, doc_md="What it does", weight_rule="upstream",
)
CrewKickoffOperator.partial(task_id="each", retries=2, wait_for_completion=True).expand(inputs=[{}])
CrewStatusSensor(task_id="wait", kickoff_id=kickoff.output, timeout=60, mode="reschedule", soft_fail=True, retries=1)
CrewStatusSensor.partial(task_id="waits").expand(kickoff_id=kickoff.output)
CrewReviewOperator(task_id="review", pending=kickoff.output, notifiers=[], response_timeout=60, trigger_rule="all_done")
CrewResumeOperator(task_id="resume", review=kickoff.output, priority_weight=2)
CrewUsageApprovalOperator(task_id="cost", completed=kickoff.output, max_cost=1, defaults="Approve", queue="people")

@task.crew
def bare(topic: str) -> dict[str, str]:
    return {"topic": topic}

@task.crew(deferrable=True, output_schema={"type": "object"}, retries=2, pool="crews")
def write(topic: str) -> dict[str, str]:
    return {"topic": topic}

@task
def plain() -> str:
    return "tea"

reveal_type(write)
bare("tea")
write.partial(topic="tea")
write("tea")
"""
MISTAKES = {
    'task.crew(deferrable="yes")': 'argument type "str"',
    "task.crew(max_total_tokens=1.5)": 'argument type "float"',
    "task.crew(output_to=3)": 'argument type "int"',
    "task.crew(poll_intervall=5)": "poll_intervall",
    'CrewKickoffOperator(task_id="a", inputs={}, poll_intervall=5)': 'Unexpected keyword argument "poll_intervall"',
    'CrewKickoffOperator(task_id="a", inputs={}, retries="two")': 'Argument "retries"',
    'CrewKickoffOperator(task_id="a", inputs={}, max_cost="2 USD")': 'Argument "max_cost"',
    "CrewKickoffOperator(inputs={})": 'Missing named argument "task_id"',
    'CrewStatusSensor(task_id="a", kickoff_id="k", poke_intervall=5)': 'Unexpected keyword argument "poke_intervall"',
    'CrewReviewOperator(task_id="a", pending={}, aprovals=2)': 'Unexpected keyword argument "aprovals"',
    'CrewResumeOperator(task_id="a", reviews={})': 'Unexpected keyword argument "reviews"',
    'CrewUsageApprovalOperator(task_id="a", completed={}, max_tokens=2)': 'Unexpected keyword argument "max_tokens"',
}


def checked(folder: Path, source: str) -> str:
    """Return what mypy says of a user's file."""
    (folder / "user_dag.py").write_text(source)
    # What mypy knows of Airflow from `make lint` counts only with the same options.
    as_lint = ["--python-version", "3.11", "--ignore-missing-imports", "--untyped-calls-exclude", "airflow"]
    command = [sys.executable, "-m", "mypy", "--strict", *as_lint, "user_dag.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE).stdout


def test_at_run_time_it_is_airflows_own_decorator() -> None:
    assert airflow_crew_provider.decorators.task is airflow_task


def test_the_stub_is_written_from_the_signature_of_the_operator() -> None:
    assert arguments.STUB.read_text("utf-8") == arguments.stub(), "run: python -m scripts.arguments"


WRITTEN = arguments.ARGUMENTS.read_text("utf-8")


@pytest.mark.skipif(f"Airflow {airflow.__version__};" not in WRITTEN, reason="written from another Airflow")
def test_the_arguments_are_written_from_the_signatures_of_airflow() -> None:
    assert arguments.arguments() == WRITTEN, "run: python -m scripts.arguments"


@pytest.mark.slow
@pytest.mark.since_airflow("3.1")
def test_mypy_takes_what_is_right_and_names_what_is_not(tmp_path: Path) -> None:
    said = checked(tmp_path, USES + "".join(f"{mistake}\n" for mistake in MISTAKES))
    assert "Task[[topic: str], dict[str, str]]" in said
    first_mistake = USES.count("\n") + 1
    places = [int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line]
    assert set(places) == set(range(first_mistake, first_mistake + len(MISTAKES))), said
    for place, hint in enumerate(MISTAKES.values(), first_mistake):
        assert any(line.startswith(f"user_dag.py:{place}: ") and hint in line for line in said.splitlines()), said


def test_the_arguments_of_every_task_are_those_of_airflow() -> None:
    taken = set(inspect.signature(BaseOperator.__init__).parameters) - {"self", "args", "kwargs"}
    assert len(taken) > 40
    # A warning since Airflow 2.2, and removed in Airflow 3.
    assert taken - {"task_concurrency"} <= set(TaskArguments.__annotations__)


def test_the_arguments_of_every_sensor_are_those_of_airflow() -> None:
    taken = set(inspect.signature(BaseSensorOperator.__init__).parameters) - {"self", "kwargs", "poke_interval"}
    assert len(taken) > 4
    assert taken <= set(SensorArguments.__annotations__)
