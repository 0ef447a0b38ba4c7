"""What a type checker and an editor know of `@task.crew`, by the stub of `airflow_crew_provider.decorators`."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import task as airflow_task

import airflow_crew_provider.decorators
from airflow_crew_provider.operators.kickoff import CrewKickoffOperator
from airflow_crew_provider.wait.task import WaitingTask
from scripts.stack.waiting import PATIENCE

STUB = Path(airflow_crew_provider.decorators.__file__).with_suffix(".pyi")
USES = """
from airflow_crew_provider.decorators import task

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
    'task.crew(deferrable="yes")': 'argument "deferrable"',
    "task.crew(max_total_tokens=1.5)": 'argument "max_total_tokens"',
    "task.crew(output_to=3)": 'argument "output_to"',
}


def checked(folder: Path, source: str) -> str:
    """Return what mypy says of a user's file."""
    (folder / "user_dag.py").write_text(source)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "user_dag.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE).stdout


def test_at_run_time_it_is_airflows_own_decorator() -> None:
    assert airflow_crew_provider.decorators.task is airflow_task


def test_the_stub_has_the_parameters_and_defaults_of_the_operator() -> None:
    functions = [node for node in ast.walk(ast.parse(STUB.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
    arguments = functions[0].args
    stub = {each.arg: default for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)}
    parameters = {**inspect.signature(CrewKickoffOperator).parameters, **inspect.signature(WaitingTask).parameters}
    own = {name: each.default for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    del own["inputs"]
    assert list(stub) == list(own)
    given = {name: ast.literal_eval(value) for name, value in stub.items() if value}
    # Airflow's settings decide on the first, and `@task.crew` on the second.
    assert {**given, "deferrable": own["deferrable"], "wait_for_completion": False} == own


@pytest.mark.slow
@pytest.mark.since_airflow("3.1")
def test_mypy_takes_what_is_right_and_names_what_is_not(tmp_path: Path) -> None:
    said = checked(tmp_path, USES + "".join(f"{mistake}\n" for mistake in MISTAKES))
    assert "Task[[topic: str], dict[str, str]]" in said
    first_mistake = USES.count("\n") + 1
    places = [int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line]
    assert set(places) == set(range(first_mistake, first_mistake + len(MISTAKES))), said
