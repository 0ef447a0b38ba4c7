"""What `crewai create` makes is served by its folder as it is, on the offline model."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import Command, eventually
from crewai_projects import created
from test_crewai_agents import project_in

from crew_service.offline.answers import ANSWER

TOKEN = "a-token-for-tests-only"


@pytest.fixture(scope="module")
def model() -> Iterator[dict[str, str]]:
    """The variables that the offline model's command prints."""
    command = [sys.executable, "-m", "crew_service", "offline-model", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        printed = process.stdout.readline() + process.stdout.readline()
        yield dict(re.findall(r"(OPENAI_\w+)=(\S+)", printed))
        process.terminate()


def ran(
    command: Callable[..., Command], model: dict[str, str], project: Path, inputs: dict[str, Any]
) -> dict[str, Any]:
    environment = {"CREW_SERVICE_TOKEN": TOKEN, "PYTHONPATH": str(Path(__file__).with_name("crews")), **model}
    client = command("--crew", str(project), environment=environment).client(TOKEN)
    answer = client.post("/kickoff", {"inputs": inputs})
    assert answer.ok, answer.text
    kickoff_id = answer.json()["kickoff_id"]
    eventually(lambda: client.status(kickoff_id)["status"] != "running", "the end")
    status = client.status(kickoff_id)
    assert status["status"] == "completed", status
    return dict(status["result"])


@pytest.mark.long
def test_a_json_crew(command: Callable[..., Command], model: dict[str, str], tmp_path: Path) -> None:
    project = created(tmp_path, "crew", "json_crew")
    assert (project / "crew.jsonc").exists()
    assert ran(command, model, project, {})["output"] == ANSWER


def test_a_classic_crew_writes_its_file_into_its_own_folder(
    command: Callable[..., Command], model: dict[str, str], tmp_path: Path
) -> None:
    project = created(tmp_path, "crew", "classic_crew", "--classic")
    result = ran(command, model, project, {"topic": "ducks", "current_year": "2026"})
    assert [task["task_id"] for task in result["tasks"]] == ["research_task", "reporting_task"]
    assert (project / "report.md").read_text() == ANSWER


@pytest.mark.long
def test_a_flow_writes_its_file_into_its_own_folder(
    command: Callable[..., Command], model: dict[str, str], tmp_path: Path
) -> None:
    project = created(tmp_path, "flow", "python_flow")
    result = ran(command, model, project, {})
    assert [task["task_id"] for task in result["tasks"]] == ["plan_content", "generate_content", "save_content"]
    assert (project / "output" / "post.md").read_text() == ANSWER


def test_an_agent(command: Callable[..., Command], model: dict[str, str], tmp_path: Path) -> None:
    """As later versions of CrewAI make it; this one has no template for it."""
    assert ran(command, model, project_in(tmp_path / "clerk"), {"messages": "Hello."})["output"] == ANSWER


@pytest.mark.long
def test_a_declarative_flow(command: Callable[..., Command], model: dict[str, str], tmp_path: Path) -> None:
    project = created(tmp_path, "flow", "declared_flow", "--declarative")
    assert ran(command, model, project, {"topic": "ducks"})["output"] == "ducks"
