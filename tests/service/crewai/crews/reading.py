"""A crew and a Flow that read a file before and after a question to a person."""

from __future__ import annotations

import hashlib
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.flow import Flow, human_feedback, listen, start
from crewai_files import File, ImageFile, PDFFile
from pydantic import BaseModel


class Reader(BaseLLM):
    """Answers with what it is shown of each file."""

    def supports_multimodal(self) -> bool:
        return True

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        files = next((each["files"] for each in reversed(messages) if each.get("files")), {})
        return "Thought: done\nFinal Answer: " + " ".join(f"{name}={digest(files[name])}" for name in sorted(files))


def digest(file: Any) -> str:
    return hashlib.sha256(file.read()).hexdigest()


def crew() -> Crew:
    agent = Agent(role="Reader", goal="g", backstory="b", llm=Reader(model="openai/reader"))
    tasks = [
        Task(name=name, description="Read.", expected_output="text", agent=agent, human_input=name == "draft")
        for name in ("draft", "final")
    ]
    return Crew(agents=[agent], tasks=tasks)


class State(BaseModel):
    topic: str = ""
    report: PDFFile | None = None
    either: ImageFile | File | None = None
    more: list[File] = []


class ReadingFlow(Flow[State]):
    @start()
    @human_feedback(message="Go on?")
    def first(self) -> str:
        return self.read()

    @listen(first)
    def last(self) -> str:
        return self.read()

    def read(self) -> str:
        files = [self.state.report, self.state.either, *self.state.more]
        return " ".join(f"{type(file).__name__}={digest(file)}" for file in files if file)
