"""Crews whose agents need people in the middle of a task; which tools they call is the model's to say."""

from __future__ import annotations

from typing import Any

from crewai import LLM, Agent, Crew, Flow, Task
from crewai.flow import start
from crewai.tools import BaseTool
from pydantic import BaseModel
from scribe import write

LOG: list[str] = []


def send(to: str, copies: int) -> str:
    write(LOG[0], {"tool": f"{to} {copies}"})
    return f"sent to {to}"


class SendMail(BaseTool):
    name: str = "Send mail"
    description: str = "Send a mail."

    def _run(self, to: str, copies: int = 1) -> str:
        return send(to, copies)


class SendParcel(BaseTool):
    """Does its work in `run`, which CrewAI calls first."""

    name: str = "send_parcel"
    description: str = "Send a parcel."

    def run(self, to: str, copies: int = 1) -> str:
        return send(to, copies)

    def _run(self, to: str, copies: int = 1) -> str:
        raise NotImplementedError


def remember(inputs: dict[str, Any]) -> dict[str, Any]:
    LOG[:] = [inputs["log"]]
    return inputs


def agent(role: str, *tools: BaseTool, allow_delegation: bool = False) -> Agent:
    llm = LLM(model="gpt-4o-mini")
    return Agent(role=role, goal="g", backstory="b", llm=llm, tools=tools, allow_delegation=allow_delegation)


def crew(*before: Agent) -> Crew:
    agents = [*before, agent("Clerk", SendMail())]
    only = Task(name="mail", description="Send mails. Case: {case} .", expected_output="text", agent=agents[0])
    return Crew(agents=agents, tasks=[only], before_kickoff_callbacks=[remember], cache=True)


def team() -> Crew:
    return crew(agent("Boss", allow_delegation=True))


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


class Alone(Flow[State]):
    """Its agents work without a crew."""

    @start()
    def ask(self) -> str:
        return str(agent("Clerk").kickoff(f"Write a letter. Case: {self.state.case} .").raw)


class Awaited(Flow[State]):
    @start()
    async def ask(self) -> str:
        return str((await agent("Clerk").akickoff(f"Write a letter. Case: {self.state.case} .")).raw)


class Parcel(Flow[State]):
    @start()
    def send(self) -> str:
        remember(self.state.model_dump())
        return SendParcel().run("ann", copies=3)
