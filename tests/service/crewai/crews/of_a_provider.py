"""Crews whose models are called over HTTP, by CrewAI's own client of OpenAI."""

from __future__ import annotations

from typing import Any

from crewai import LLM, Agent, Crew, Flow, Task
from crewai.flow.flow import listen, start
from crewai.flow.human_feedback import human_feedback


def _crew(*tasks: Any) -> Crew:
    writer = Agent(role="Writer on {topic}", goal="Write", backstory="b", llm=LLM(model="openai/gpt-4o"))
    made = [
        Task(name=name, description="Do {topic}.", expected_output="text", agent=writer, **more) for name, more in tasks
    ]
    return Crew(name="newsroom", agents=[writer], tasks=made)


def reviewed() -> Crew:
    return _crew(("draft", {"human_input": True}), ("end", {}))


def refuse(output: Any) -> Any:
    raise ValueError(f"not this: {output.raw}")


def refused_by_a_callback() -> Crew:
    return _crew(("draft", {"callback": refuse}))


class Reviewed(Flow):
    @start()
    @human_feedback(message="May it go on?", emit=["approve", "revise"], llm="gpt-4o")
    def draft(self) -> str:
        return str(_crew(("draft", {})).kickoff(inputs={"topic": "the day"}))

    @listen("approve")
    def publish(self) -> str:
        return "published"
