"""Describes a crew's or Flow's inputs and tasks, and rejects CrewAI features that cannot be served."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from crewai import Agent, Crew, Process, Task
from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from crew_service.crewai import internals, open_tools
from crew_service.crewai.ask_person import AskPerson
from crew_service.crewai.errors import UnsupportedCrew
from crew_service.crewai.flow_source import FlowSource
from crew_service.crewai.loading import JsonCrew
from crew_service.engine.crew import digest_of

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_\-]*)}")  # filled in by CrewAI; other braces are plain text


def describe(served: Crew | JsonCrew | FlowSource, flow_tools: Iterable[str] = ()) -> dict[str, Any]:
    """Return the inputs, tasks and tools as plain JSON; raise `UnsupportedCrew` for features that cannot be served.

    :param flow_tools: the names of a Flow's tools, which only its user knows before its methods run
    """
    if isinstance(served, FlowSource):
        tools = [[name, internals.model_name(name)] for name in flow_tools]
        return {"kind": "flow", **served.describe(), "tools": tools, "knows_all_tools": bool(tools), "asks": False}
    if isinstance(served, JsonCrew):
        described = _crew(served.crew)
        required = [name for name in described["required"] if name not in served.defaults]
        return {**described, "inputs": sorted({*described["inputs"], *served.defaults}), "required": required}
    return _crew(served)


def _crew(crew: Crew) -> dict[str, Any]:
    for problem in _problems(crew):
        raise UnsupportedCrew(problem)
    tasks = [
        {
            "id": task_id,
            "agent": _role(crew, task),
            "description": task.description,
            "human_input": bool(task.human_input),
            "digest": _digest(crew, task),
        }
        for task_id, task in named_tasks(crew).items()
    ]
    asked = inputs(crew)
    required = [] if crew.before_kickoff_callbacks else asked  # a hook may fill any of them
    return {"kind": "crew", "inputs": asked, "required": required, "tasks": tasks, "files": {}, **_tools(crew)}


def _tools(crew: Crew) -> dict[str, Any]:
    """List the tools known before any task runs, each with its own name and the name shown to the model."""
    tools = _known_tools(crew)
    named = {tool.name: [tool.name, internals.tool_name(tool)] for tool in tools}
    is_open = any(map(open_tools.are_brought_by, internals.agents_of(crew)))
    asks = any(isinstance(tool, AskPerson) for tool in tools)
    return {"tools": list(named.values()), "knows_all_tools": not is_open, "asks": asks}


def _known_tools(crew: Crew) -> list[Any]:
    return [tool for one in (*internals.agents_of(crew), *crew.tasks) for tool in getattr(one, "tools", None) or ()]


def arguments_problem(served: Crew | FlowSource, asked: Mapping[str, Any], text: str) -> str | None:
    """Return why a tool cannot be called with these arguments, worded as the end of a sentence; None if it can.

    :param asked: the state of the question: the tool's name, and the schema of a tool that is unknown until it is used
    """
    name, schema = asked["tool"], asked.get("schema")
    tools = [] if isinstance(served, FlowSource) else _known_tools(served)
    tool = next((each for each in tools if internals.tool_name(each) == name), None)
    if tool is None and schema is None:
        return f"the arguments of {name}, a tool that is not known until its task runs, cannot be checked in advance"
    try:
        if tool is not None:
            internals.validated(tool, json.loads(text))
        elif schema is not None:
            internals.check_arguments(schema, json.loads(text))
    except ValueError as problem:
        return f"{name} does not accept these arguments: {problem}"
    return None


def _digest(crew: Crew, task: Task) -> str:
    agent = crew.manager_agent if crew.process == Process.hierarchical else task.agent
    texts = [
        task.description,
        task.expected_output,
        *(getattr(agent, each, "") for each in ("role", "goal", "backstory")),
    ]
    return digest_of([*texts, *map(_schema, (task.output_pydantic, task.output_json))])


def _schema(model: type[BaseModel] | None) -> Any:
    """Return an output model's JSON Schema, or the model's name if it has none."""
    with suppress(PydanticInvalidForJsonSchema):
        return model and model.model_json_schema()
    return str(model)


def named_tasks(crew: Crew) -> dict[str, Task]:
    """Assign each task an id that is the same in every process: its name, made unique, or its position in the crew."""
    named: dict[str, Task] = {}
    for place, task in enumerate(crew.tasks, 1):
        name = task.name or f"task_{place}"
        while name in named:
            name = f"{name}_{place}"
        named[name] = task
    return named


def inputs(crew: Crew) -> list[str]:
    """List the placeholders that CrewAI fills in from the inputs."""
    texts = [text for task in crew.tasks for text in (task.description, task.expected_output, task.output_file)]
    for agent in crew.agents:
        texts += [agent.role, agent.goal, agent.backstory]
    return sorted({name for text in texts for name in PLACEHOLDER.findall(text or "")})


def _role(crew: Crew, task: Task) -> str:
    if crew.process == Process.hierarchical:
        return crew.manager_agent.role if crew.manager_agent else "Crew Manager"
    return task.agent.role if task.agent else ""


def _problems(crew: Crew) -> Iterator[str]:
    if not crew.tasks:
        yield "it has no tasks."
    if crew.checkpoint:
        yield "it has checkpoint= set; the service stores finished tasks itself, so leave it out."
    for name, task in named_tasks(crew).items():
        if not task.human_input:
            continue
        if task.async_execution:
            yield f"its task {name!r} has human_input and async_execution; a waiting task cannot be asynchronous."
        agent = crew.manager_agent if crew.process == Process.hierarchical else task.agent
        if agent is not None and not isinstance(agent, Agent):
            yield (
                f"its task {name!r} has human_input, but its agent is a {type(agent).__name__}, "
                "to which CrewAI does not pass feedback."
            )
