"""A process that runs crews of each kind on whatever model the environment names, and prints each result as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from crewai import LLM, Agent, Crew, Process, Task
from crewai.tools import tool
from pydantic import BaseModel


class Report(BaseModel):
    title: str
    score: int
    note: str | None = None


@tool
def search(query: str) -> str:
    """Search for something."""
    searched.append(query)
    return f"All about {query}."


searched: list[str] = []
KINDS: dict[str, Callable[[], Any]] = {}


def kind(make: Callable[[], Any]) -> Callable[[], Any]:
    KINDS[make.__name__] = make
    return make


def _crew(crew: dict[str, Any] | None = None, task: dict[str, Any] | None = None, **agent: Any) -> Any:
    writer = Agent(role="Writer", goal="Write", backstory="You write.", **agent)
    work = {"description": "Write about tea.", "expected_output": "A text", "agent": writer, **(task or {})}
    made = Crew(agents=[writer], tasks=[Task(**work)], **(crew or {}))
    result = made.kickoff()
    if made.stream:
        return "".join(chunk.content for chunk in result)
    return result.pydantic.model_dump() if result.pydantic else result.raw


@kind
def plain() -> Any:
    return _crew()


@kind
def tools() -> Any:
    return _crew(tools=[search], task={"description": "Search for it."})


@kind
def output_model() -> Any:
    return _crew(task={"output_pydantic": Report})


@kind
def planned() -> Any:
    return _crew({"planning": True})


@kind
def hierarchical() -> Any:
    return _crew({"process": Process.hierarchical, "manager_llm": "gpt-4o-mini"}, {"agent": None})


@kind
def reasoning() -> Any:
    return _crew(reasoning=True)


@kind
def text_guardrail() -> Any:
    return _crew(task={"guardrail": "The text must be short."})


@kind
def memory() -> Any:
    return _crew({"memory": True})


@kind
def streamed() -> Any:
    return _crew({"stream": True})


@kind
def streamed_tools() -> Any:
    return _crew(tools=[search], llm=LLM(model="gpt-4o-mini", stream=True), task={"description": "Search for it."})


@kind
def responses() -> Any:
    return _crew(tools=[search], llm=LLM(model="gpt-4o-mini", api="responses"), task={"description": "Search for it."})


@kind
def streamed_responses() -> Any:
    return _crew(llm=LLM(model="gpt-4o-mini", api="responses", stream=True), task={"output_pydantic": Report})


@kind
def agent_alone() -> Any:
    answer = Agent(role="Writer", goal="Write", backstory="You write.").kickoff("Write.", response_format=Report)
    return answer.pydantic.model_dump() if answer.pydantic else None


if __name__ == "__main__":
    for name, run in KINDS.items():
        searched.clear()
        sys.stdout.write(f"RESULT {json.dumps([name, run(), searched])}\n")
