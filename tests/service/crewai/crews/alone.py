"""Agents without a crew, with the tools of `durable`; what they are told says where to write, and when to die."""

from __future__ import annotations

import re
from typing import Any

from crewai import LLM, Agent, Flow
from crewai.flow import start
from crewai.hooks import register_before_llm_call_hook
from pydantic import BaseModel
from scribe import INPUTS

CASE = re.compile(r"Case: (\S+) in (\S+)")


def read_case(context: Any) -> None:
    if found := CASE.search(str(context.messages)):
        place = f"{found[2]}/{found[1]}"
        INPUTS.update(log=f"{place}.log", kill=f"{place}.kill", case=found[1])


register_before_llm_call_hook(read_case)

from durable import Connected, Note, sign  # noqa: E402  # its hooks come after this one


def agent(kind: type[Agent] = Agent, **more: Any) -> Agent:
    texts = {"role": "Clerk", "goal": "Take notes. Case: {case} in {folder} .", "backstory": "b", **more}
    return kind(llm=LLM(model="gpt-4o-mini"), tools=[Note(), sign], **texts)


clerk = agent(goal="g")


def hired() -> Agent:
    """One whose texts have inputs."""
    return agent(role="Clerk of {folder}")


connected = agent(Connected, goal="g", mcps=["https://tools.example/mcp"])


class Report(BaseModel):
    title: str
    pages: int


class Reporter(Agent):
    response_format: type[BaseModel] = Report


reporter = Reporter(role="Reporter", goal="g", backstory="b", llm=LLM(model="gpt-4o-mini"))


class Telling(Agent):
    """Returns its answer as a string."""

    def kickoff(self, *args: Any, **kwargs: Any) -> Any:
        return super().kickoff(*args, **kwargs).raw


telling = Telling(role="Reporter", goal="g", backstory="b", llm=LLM(model="gpt-4o-mini"))


class State(BaseModel):
    text: str = ""


class Method(Flow[State]):
    @start()
    def work(self) -> str:
        return str(agent(goal="g").kickoff(self.state.text).raw)


class Awaited(Flow[State]):
    @start()
    async def work(self) -> str:
        return str((await agent(goal="g").akickoff(self.state.text)).raw)
