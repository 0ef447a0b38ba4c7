"""A crew and a Flow that need nothing of CrewAI beyond its public API: no rules, no questions."""

from __future__ import annotations

from typing import Any

from crewai import Agent, BaseLLM, Crew, Flow, Task
from crewai.flow.flow import listen, start
from crewai.tools import tool
from pydantic import BaseModel


class Plain(BaseLLM):
    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        return "a draft"


@tool
def note(text: str) -> str:
    """Take a note."""
    return text


def crew() -> Crew:
    writer = Agent(role="Writer", goal="g", backstory="b", llm=Plain(model="plain"), tools=[note])
    text = "Draft {topic}."
    return Crew(agents=[writer], tasks=[Task(name="draft", description=text, expected_output="text", agent=writer)])


class Topic(BaseModel):
    topic: str = ""


class PlainFlow(Flow[Topic]):
    @start()
    def outline(self) -> str:
        return f"outline of {self.state.topic}"

    @listen(outline)
    def draft(self, outline: str) -> str:
        return f"draft from the {outline}"
