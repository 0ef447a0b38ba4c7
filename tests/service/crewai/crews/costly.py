"""Crews of CrewAI's own models, whose answers come from a server of the test."""

from __future__ import annotations

import time
from pathlib import Path

from crewai import LLM, Agent, BaseLLM, Crew, Task
from crewai.flow import Flow, human_feedback, listen, start
from crewai.tools import tool
from pydantic import BaseModel


@tool("add")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent(model: str | BaseLLM) -> Agent:
    return Agent(
        role="Writer", goal="g", backstory="b", llm=LLM(model=model) if isinstance(model, str) else model, tools=[add]
    )


def task(name: str, of: Agent, **options: object) -> Task:
    return Task(name=name, description=f"Do {name} on {{topic}}.", expected_output="text", agent=of, **options)


def costly() -> Crew:
    """Two of its tasks run at once, and their agents share a model."""
    shared = LLM(model="gpt-4o-mini")
    left, right, writer = agent(shared), agent(shared), agent("gpt-4o")
    beside = [task("left", left, async_execution=True), task("right", right, async_execution=True)]
    tasks = [*beside, task("draft", writer, human_input=True), task("last", left)]
    return Crew(agents=[left, right, writer], tasks=tasks)


def interrupted() -> Crew:
    """Its second task waits until a file is there, after its model has answered."""
    of = agent("gpt-4o")

    def wait(output):  # type: ignore[no-untyped-def]
        while not Path("go").exists():
            time.sleep(0.02)
        return True, output.raw

    return Crew(agents=[of], tasks=[task("first", of), task("second", of, guardrail=wait)])


class Topic(BaseModel):
    topic: str = "tea"


class CostlyFlow(Flow[Topic]):
    @start()
    def research(self) -> str:
        of = agent("gpt-4o-mini")
        return Crew(agents=[of], tasks=[task("a", of), task("b", of)]).kickoff(inputs={"topic": "tea"}).raw

    @listen(research)
    @human_feedback(message="Go on?", emit=["yes", "no"])
    def check(self, text: str) -> str:
        return text

    @listen("yes")
    async def write(self, answer: object) -> str:
        return str(await LLM(model="gpt-4o").acall("Write."))
