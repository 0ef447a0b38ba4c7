"""What parsing a DAG file loads: no HTTP library, nothing of the inbox, no Markdown parser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("simulated_airflow")
NOT_LOADED = (
    "requests",
    "urllib3",
    "aiohttp",
    "yarl",
    "fastapi",
    "starlette",
    "uvicorn",
    "markdown_it",
    "crewai",
    "jsonschema",
)
AIRFLOW_ALONE = (
    "from airflow.providers.common.compat.sdk import DAG, BaseOperator, BaseSensorOperator, task",
    "from airflow.providers.standard.operators.hitl import HITLOperator",
    "BaseOperator(task_id='alone')",  # 3.1 loads jsonschema for any operator
)
PUBLIC = (
    "exceptions",
    "models",
    "hooks.crew",
    "operators.crew",
    "operators.review",
    "sensors.crew",
    "triggers.crew",
    "decorators.crew",
    "task_groups.crew",
    "links.crew",
    "notifications.crew",
    "inbox.plugin",
    "get_provider_info",
)
A_DAG = """
from airflow.providers.common.compat.sdk import DAG
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.task_groups.crew import crew_with_review

with DAG("parsed", schedule=None):
    kickoff = CrewKickoffOperator(task_id="kickoff", inputs={"topic": "{{ params.topic }}"}, deferrable=True)
    wait = CrewStatusSensor(task_id="wait", kickoff_id=kickoff.output, deferrable=True)
    review = CrewReviewOperator(task_id="review", pending=wait.output)
    CrewResumeOperator(task_id="resume", review=review.output)
    crew_with_review(group_id="group", inputs={"topic": "airships"})
"""


def loaded_by(code: str, tmp_path: Path) -> set[str]:
    """Return which modules a fresh Python holds after the code that it did not hold after Airflow's own."""
    script = "\n".join(
        ("import sys", *AIRFLOW_ALONE, "before = set(sys.modules)", code, "print(*(set(sys.modules) - before))")
    )
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.since_airflow("3.1")  # it parses a review
@pytest.mark.slow  # each starts an interpreter
@pytest.mark.parametrize(
    "code", ["\n".join(f"import airflow_crew_provider.{name}" for name in PUBLIC), A_DAG], ids=["modules", "dag"]
)
def test_parsing_a_dag_file_loads_no_heavy_library(code: str, tmp_path: Path) -> None:
    loaded = loaded_by(code, tmp_path)
    assert "airflow_crew_provider.models" in loaded
    assert not loaded.intersection(NOT_LOADED)
