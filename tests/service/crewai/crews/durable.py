"""A task of three calls of a model and three of tools, in CrewAI's ways to make them; its process dies on request."""

from __future__ import annotations

import os
import signal
from typing import Any

from crewai import LLM, Agent, Crew, Flow, Task
from crewai.flow import start
from crewai.hooks import register_before_llm_call_hook, register_before_tool_call_hook
from crewai.tools import BaseTool, tool
from pydantic import BaseModel
from scribe import INPUTS, remember, write

CALLS: list[str] = []


def calling(context: Any) -> None:
    die_after(len(CALLS))
    CALLS.append(type(context).__name__)


def die_after(calls: float) -> None:
    """Kill this process if so many calls are made, once; a half is in the middle of one."""
    try:
        with open(INPUTS["kill"]) as file:
            wanted = float(file.read())
    except (KeyError, FileNotFoundError):
        return
    if calls == wanted:
        os.unlink(INPUTS["kill"])
        os.kill(os.getpid(), signal.SIGKILL)


register_before_llm_call_hook(calling)
register_before_tool_call_hook(calling)


def note(text: str) -> str:
    write(INPUTS["log"], {"tool": text})
    die_after(len(CALLS) - 0.5)
    if text.startswith(INPUTS.get("fails", "none")):
        raise ValueError(f"no answer {os.environ['OPENAI_API_KEY']}")
    return f"noted {text}"


class Note(BaseTool):
    name: str = "TakeNote"
    description: str = "Take a note."

    def _run(self, text: str) -> str:
        return note(text)


@tool("sign", result_as_answer=True)
def sign(text: str) -> str:
    """Sign the notes."""
    return note(text)


@tool("take_note")
async def take_note(text: str) -> str:
    """Take a note."""
    return note(text)


@tool("sign", result_as_answer=True)
async def asign(text: str) -> str:
    """Sign the notes."""
    return note(text)


class AsyncNote(Note):
    async def _arun(self, text: str) -> str:
        return note(text)


def checked(output):  # type: ignore[no-untyped-def]  # CrewAI refuses annotations that are strings
    die_after(6)
    return True, output.raw


class Connected(Agent):
    """An agent whose tools come from a server, of which nothing is known before its task runs."""

    def get_mcp_tools(self, mcps: Any) -> list[BaseTool]:
        return [Note()]


def crew(*tools: BaseTool, kind: type[Agent] = Agent, mcps: Any = None, **options: Any) -> Crew:
    of = kind(role="Clerk", goal="g", backstory="b", llm=LLM(model="gpt-4o-mini"), tools=list(tools), mcps=mcps)
    only = Task(
        name="notes",
        description="Take notes. Case: {case} .",
        expected_output="text",
        agent=of,
        guardrail=checked,
        **options,
    )
    steps = {"step_callback": lambda _: write(INPUTS["log"], {"step": "told"})}
    return Crew(agents=[of], tasks=[only], before_kickoff_callbacks=[remember], **steps)


def native() -> Crew:
    return crew(Note(), sign)


def words() -> Crew:
    """Its model calls tools by words in its answer."""
    made = native()
    object.__setattr__(made.agents[0].llm, "supports_function_calling", lambda: False)
    return made


def beside() -> Crew:
    """Its tools are coroutines, and its task runs in a thread."""
    return crew(take_note, asign, async_execution=True)


def connected() -> Crew:
    return crew(sign, kind=Connected, mcps=["https://tools.example/mcp"])


class State(BaseModel):
    case: str = ""
    log: str = ""
    kill: str = ""
    fails: str = "none"


class Async(Flow[State]):
    """Its crew awaits its models and tools."""

    @start()
    async def run_crew(self) -> str:
        INPUTS.update(self.state.model_dump())
        return (await crew(AsyncNote(), asign).akickoff(INPUTS)).raw
