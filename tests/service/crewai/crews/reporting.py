"""A crew and a Flow that read a PDF and write a chart and a report, with a question to a person between the two."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.flow import Flow, human_feedback, listen, start
from crewai.tools import tool
from crewai_files import PDFFile
from PIL import Image
from pydantic import BaseModel


def draw_into_folder() -> None:
    charts = Path(os.environ["CREW_FILES_DIR"], "charts")
    charts.mkdir(exist_ok=True)
    Image.new("RGB", (64, 32), "teal").save(charts / "sales.png")


@tool
def draw() -> str:
    """Draw the chart."""
    draw_into_folder()
    return "drawn"


class Reader(BaseLLM):
    """Draws the chart, then answers with the hash of the file that it is given."""

    def supports_multimodal(self) -> bool:
        return True

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        if "Observation: drawn" not in str(messages):
            return "Thought: draw\nAction: draw\nAction Input: {}"
        files = next(each["files"] for each in messages if each.get("files"))
        return f"Thought: done\nFinal Answer: read {hashlib.sha256(files['report'].read()).hexdigest()}"


def crew() -> Crew:
    agent = Agent(role="Reader", goal="g", backstory="b", llm=Reader(model="openai/reader"), tools=[draw])
    task = Task(
        name="read",
        description="Read.",
        expected_output="text",
        agent=agent,
        human_input=True,
        output_file="report.md",
    )
    return Crew(agents=[agent], tasks=[task])


class State(BaseModel):
    report: PDFFile | None = None


class ReportingFlow(Flow[State]):
    @start()
    @human_feedback(message="Is it right?", emit=["approve", "drop"])
    def read(self) -> str:
        draw_into_folder()
        return self.digest()

    @listen("approve")
    def publish(self) -> str:
        assert Path(os.environ["CREW_FILES_DIR"], "charts", "sales.png").exists()
        Path(os.environ["CREW_FILES_DIR"], "report.md").write_text(self.digest())
        return self.digest()

    def digest(self) -> str:
        assert self.state.report
        return f"read {hashlib.sha256(self.state.report.read()).hexdigest()}"
