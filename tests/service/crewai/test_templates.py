"""What `crewai create` makes is served by its folder as it is, with a model on loopback as the only change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import Command, eventually
from crewai_projects import created
from openai_server import OpenAI

TOKEN = "a-token-for-tests-only"


@pytest.fixture
def model() -> Iterator[OpenAI]:
    play = OpenAI()
    yield play
    play.close()


def ran(command: Callable[..., Command], model: OpenAI, project: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    client = command("--crew", str(project), environment={"CREW_SERVICE_TOKEN": TOKEN, **model.environment}).client(
        TOKEN
    )
    answer = client.post("/kickoff", {"inputs": inputs})
    assert answer.ok, answer.text
    kickoff_id = answer.json()["kickoff_id"]
    eventually(lambda: client.status(kickoff_id)["status"] != "running", "the end")
    status = client.status(kickoff_id)
    assert status["status"] == "completed", status
    return dict(status["result"])


@pytest.mark.long
def test_a_json_crew(command: Callable[..., Command], model: OpenAI, tmp_path: Path) -> None:
    project = created(tmp_path, "crew", "json_crew")
    assert (project / "crew.jsonc").exists()
    assert ran(command, model, project, {})["output"] == model.answer


def test_a_classic_crew_writes_its_file_into_its_own_folder(
    command: Callable[..., Command], model: OpenAI, tmp_path: Path
) -> None:
    project = created(tmp_path, "crew", "classic_crew", "--classic")
    result = ran(command, model, project, {"topic": "ducks", "current_year": "2026"})
    assert [task["task_id"] for task in result["tasks"]] == ["research_task", "reporting_task"]
    assert (project / "report.md").read_text() == model.answer


@pytest.mark.long
def test_a_flow_writes_its_file_into_its_own_folder(
    command: Callable[..., Command], model: OpenAI, tmp_path: Path
) -> None:
    project = created(tmp_path, "flow", "python_flow")
    result = ran(command, model, project, {})
    assert [task["task_id"] for task in result["tasks"]] == ["plan_content", "generate_content", "save_content"]
    assert (project / "output" / "post.md").read_text() == model.answer


@pytest.mark.long
def test_a_declarative_flow(command: Callable[..., Command], model: OpenAI, tmp_path: Path) -> None:
    project = created(tmp_path, "flow", "declared_flow", "--declarative")
    assert ran(command, model, project, {"topic": "ducks"})["output"] == "ducks"
