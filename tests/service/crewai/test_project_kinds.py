"""What projects use beside the templates: a PDF as knowledge, delegation, and text that a model reads as an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crew_client import Command, eventually
from engine_stub import CREWS
from openai_server import OpenAI

TOKEN = "a-token-for-tests-only"
CREW = """
from crewai import Agent, Crew, Task
from crewai.knowledge.source.pdf_knowledge_source import PDFKnowledgeSource
from crewai.project import CrewBase, agent, crew, task


@CrewBase
class Ducks:
    agents_config = {}
    tasks_config = {}

    @agent
    def writer(self) -> Agent:
        return Agent(role="Writer", goal="Write", backstory="b", llm="openai/gpt-4o", allow_delegation=True)

    @agent
    def expert(self) -> Agent:
        return Agent(role="Expert", goal="Know", backstory="b", llm="openai/gpt-4o")

    @task
    def write_task(self) -> Task:
        return Task(description="Write on {topic}.", expected_output="text", agent=self.writer())

    @crew
    def crew(self) -> Crew:
        return Crew(
            agents=self.agents, tasks=self.tasks, knowledge_sources=[PDFKnowledgeSource(file_paths=["ducks.pdf"])]
        )
"""


@pytest.fixture
def model() -> Iterator[OpenAI]:
    play = OpenAI()
    yield play
    play.close()


def pdf(text: str) -> bytes:
    """Return a PDF of one page with this text."""
    drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
    parts = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        "/Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body, places = "%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{part}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    trailer = f"trailer << /Size {len(parts) + 1} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF"
    return f"{body}xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()


@pytest.mark.long
def test_a_crew_with_pdf_knowledge_delegates_to_a_coworker(
    command: Callable[..., Command], model: OpenAI, tmp_path: Path
) -> None:
    project = tmp_path / "ducks"
    (project / "src/ducks").mkdir(parents=True)
    (project / "knowledge").mkdir()
    (project / "pyproject.toml").write_text('[tool.crewai]\ntype = "crew"\n')
    (project / "src/ducks/__init__.py").touch()
    (project / "src/ducks/crew.py").write_text(CREW)
    (project / "knowledge/ducks.pdf").write_bytes(pdf("Ducks do not echo in November."))
    model.tools["delegate_work_to_coworker"] = {"task": "Tell it.", "context": "November", "coworker": "Expert"}
    environment = {"CREW_SERVICE_TOKEN": TOKEN, "CREWAI_STORAGE_DIR": str(tmp_path / "storage"), **model.environment}
    client = command("--crew", str(project), environment=environment).client(TOKEN)
    flow = client.kickoff("ducks")
    eventually(lambda: client.status(flow)["status"] != "running", "the end")
    assert client.status(flow)["result"]["output"] == model.answer
    embedded = [text for asked in model.asked if "embeddings" in asked["path"] for text in asked["input"]]
    assert any("Ducks do not echo in November." in str(text) for text in embedded)
    chats = [str(asked["messages"]) for asked in model.asked if "messages" in asked]
    assert any("You are Expert" in chat and "Tell it." in chat for chat in chats), "the coworker was asked"


@pytest.mark.long
def test_the_model_gets_free_text_answers_but_no_chosen_outcomes(
    command: Callable[..., Command], model: OpenAI
) -> None:
    environment = {"CREW_SERVICE_TOKEN": TOKEN, **model.environment}
    client = command("--crew", f"{CREWS / 'flows.py'}:BriefingFlow", environment=environment).client(TOKEN)
    flow = client.kickoff("ducks")
    client.until(flow, "pending")
    answer = {"execution_id": flow, "task_id": "draft"}
    assert client.post("/resume", {**answer, "outcome": "rework", "human_feedback": "shorter"}).ok
    eventually(lambda: "shorter" in client.status(flow).get("task_output", ""), "the second draft")
    assert model.asked == []
    model.answer = '{"outcome": "publish"}'
    assert client.post("/resume", {**answer, "human_feedback": "Let the world see it."}).ok
    eventually(lambda: client.status(flow).get("task_id") == "place", "the second gate")
    assert "Let the world see it." in str(model.asked[0]["messages"])
