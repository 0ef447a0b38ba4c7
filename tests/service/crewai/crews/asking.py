"""Crews whose agents need people in the middle of a task; which tools they call is the model's to say."""

from __future__ import annotations

from typing import Any

from crewai import LLM, Agent, Crew, Flow, Task
from crewai.flow import start
from crewai.tools import BaseTool
from pydantic import BaseModel
from scribe import write

LOG: list[str] = []


class SendMail(BaseTool):
    name: str = "Send mail"
    description: str = "Send a mail."

    def _run(self, to: str, copies: int = 1) -> str:
        write(LOG[0], {"tool": f"{to} {copies}"})
        return f"sent to {to}"


def crew() -> Crew:
    def remember(inputs: dict[str, Any]) -> dict[str, Any]:
        LOG[:] = [inputs["log"]]
        return inputs

    of = Agent(role="Clerk", goal="g", backstory="b", llm=LLM(model="gpt-4o-mini"), tools=[SendMail()])
    only = Task(name="mail", description="Send mails. Case: {case} .", expected_output="text", agent=of)
    return Crew(agents=[of], tasks=[only], before_kickoff_callbacks=[remember], cache=True)


class State(BaseModel):
    case: str = ""
    log: str = ""


class Method(Flow[State]):
    @start()
    def send(self) -> str:
        try:
            return str(crew().kickoff(self.state.model_dump()).raw)
        except BaseException:
            return "nothing"
