"""Crews and a Flow of four tasks, of which the third fails as often as a file says, in the way that it says."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from crewai import LLM, Agent, Crew, Flow, Task
from crewai.flow import listen, persist, start
from crewai.tools import BaseTool
from pydantic import BaseModel
from scribe import INPUTS, remember, write


def is_time_to(fail: str) -> bool:
    """Whether to fail in this way, once more."""
    path = Path(INPUTS["trouble"])
    ways = path.read_text().split() if path.exists() else []
    if fail not in ways:
        return False
    ways.remove(fail)
    path.write_text(" ".join(ways))
    return True


class Look(BaseTool):
    name: str = "look"
    description: str = "Look something up."

    def _run(self, what: str) -> str:
        write(INPUTS["log"], {"tool": f"look {what}"})
        if is_time_to("exit"):
            raise SystemExit("no licence")
        if is_time_to("raise"):
            raise LookupError("no connection")
        return f"saw {what}"


class Mail(BaseTool):
    name: str = "mail"
    description: str = "Send a mail."

    def _run(self, what: str) -> str:
        write(INPUTS["log"], {"tool": f"mail {what}"})
        return f"sent {what}"


def guard(output):  # type: ignore[no-untyped-def]  # CrewAI refuses annotations that are strings
    if is_time_to("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    return (False, "too plain") if is_time_to("refuse") else (True, output.raw)


def told(output):  # type: ignore[no-untyped-def]
    if is_time_to("callback"):
        raise OSError("no one listens")


def agent() -> Agent:
    llm = LLM(model="gpt-4o-mini", max_retries=0)
    made = Agent(role="Clerk", goal="g", backstory="b", llm=llm, tools=[Look(), Mail()], max_retry_limit=0)
    if "tool_failure_policy" in Agent.model_fields:
        made.tool_failure_policy = "raise"
    return made


def task(of: Agent, name: str, **options: Any) -> Task:
    text = f"Do the {name} of {{case}} ."
    return Task(name=name, description=text, expected_output="text", agent=of, **options)


def four() -> Crew:
    of = agent()
    third = task(of, "third", guardrail=guard, guardrail_max_retries=0, callback=told)
    tasks = [task(of, "first"), task(of, "second"), third, task(of, "fourth")]
    return Crew(agents=[of], tasks=tasks, before_kickoff_callbacks=[remember])


def reviewed() -> Crew:
    of = agent()
    third = task(of, "third", guardrail=guard, guardrail_max_retries=0, human_input=True)
    return Crew(agents=[of], tasks=[task(of, "first"), third], before_kickoff_callbacks=[remember])


class Locked(Flow[Any]):
    @start()
    def first(self) -> Any:
        return threading.Lock()

    @listen(first)
    def second(self, before: Any) -> str:
        raise OSError("no disk")


class State(BaseModel):
    case: str = ""
    log: str = ""
    trouble: str = ""
    seen: list[str] = []


def alone(name: str, **options: Any) -> str:
    of = agent()
    return str(Crew(agents=[of], tasks=[task(of, name, **options)]).kickoff(INPUTS).raw)


@persist()
class Steps(Flow[State]):
    @start()
    def first(self) -> str:
        INPUTS.update(self.state.model_dump())
        self.state.seen.append("first")
        return alone("first")

    @listen(first)
    def second(self, before: str) -> str:
        INPUTS.update(self.state.model_dump())
        self.state.seen.append("second")
        return alone("second")

    @listen(second)
    def third(self, before: str) -> str:
        INPUTS.update(self.state.model_dump())
        text = alone("third", guardrail=guard, guardrail_max_retries=0)
        if is_time_to("method"):
            raise OSError("no disk")
        self.state.seen.append("third")
        return text

    @listen(third)
    def fourth(self, before: str) -> str:
        return f"{self.state.id} {' '.join(self.state.seen)} {alone('fourth')}"
