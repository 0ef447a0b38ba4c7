"""Two tasks of five calls each: three of a model, and two of tools, of which each writes its effect down."""

from __future__ import annotations

import time

from crewai import LLM, Agent, Crew, Task
from crewai.tools import BaseTool
from scribe import INPUTS, remember, write


class Note(BaseTool):
    name: str = "note"
    description: str = "Take a note."

    def _run(self, what: str) -> str:
        write(INPUTS["log"], {"case": INPUTS["case"], "task": what, "call": self.name})
        time.sleep(INPUTS["seconds"])
        return f"{self.name} of {what}"


class Pay(Note):
    name: str = "pay"
    description: str = "Pay something."


def ten() -> Crew:
    of = Agent(role="Clerk", goal="g", backstory="b", llm=LLM(model="gpt-4o-mini"), tools=[Note(), Pay()])
    tasks = [
        Task(name=name, description=f"Do the {name} of {{case}} .", expected_output="text", agent=of)
        for name in ("first", "second")
    ]
    return Crew(agents=[of], tasks=tasks, before_kickoff_callbacks=[remember])
