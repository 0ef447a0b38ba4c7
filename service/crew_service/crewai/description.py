"""Describes a crew's or Flow's inputs and tasks, and rejects CrewAI features that cannot be served."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from crewai import Agent, Crew, Process, Task
from crewai.hooks import InterceptionPoint, get_hooks
from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from crew_service.crewai import execution_files, open_tools, tool_arguments
from crew_service.crewai.agent_run import AgentSource
from crew_service.crewai.ask_person import AskPerson
from crew_service.crewai.errors import Fatal, UnsupportedCrew
from crew_service.crewai.flow_source import FlowSource
from crew_service.crewai.internals import Seam, first_missing, task_ends, tool_calls
from crew_service.crewai.internals.crew_tasks import CONTINUE, FILES, TEXTS, role_of
from crew_service.crewai.internals.human_input import PEOPLE
from crew_service.crewai.loading import JsonCrew, Served, agents_of, tasks_of
from crew_service.engine.agent_messages import AGENT, MESSAGES
from crew_service.engine.crew import digest_of

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_\-]*)}")  # filled in by CrewAI; other braces are plain text

BEFORE_TEXTS = (InterceptionPoint.EXECUTION_START, InterceptionPoint.INPUT)  # hooks that get a crew's inputs


def describe(served: Served, flow_tools: Iterable[str] = ()) -> dict[str, Any]:
    """Return the inputs, tasks and tools as plain JSON; raise `UnsupportedCrew` for features that cannot be served.

    :param flow_tools: the names of a Flow's tools, which only its user knows before its methods run
    """
    if isinstance(served, FlowSource):
        tools = list(map(tool_calls.names_of, flow_tools))
        return {"kind": "flow", **served.describe(), "tools": tools, "knows_all_tools": bool(tools), "asks": False}
    if isinstance(served, AgentSource):
        return _agent(served)
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
            "digest": _digest(
                [task.description, task.expected_output],
                crew.manager_agent if crew.process == Process.hierarchical else task.agent,
                (task.output_pydantic, task.output_json),
            ),
        }
        for task_id, task in named_tasks(crew.tasks).items()
    ]
    names = inputs(crew)
    required = [] if _may_fill_inputs(crew) else names
    files: dict[str, Any] = {"files": {}, "file_problem": execution_files.problem()}
    return {"kind": "crew", "inputs": names, "required": required, "tasks": tasks, **files, **_tools(crew)}


def _may_fill_inputs(crew: Crew) -> bool:
    """Whether any input may come from a hook, of the crew or of all crews, or from a `kickoff` of the crew's class."""
    own = type(crew).__mro__[: type(crew).__mro__.index(Crew)]
    return bool(
        crew.before_kickoff_callbacks
        or any(map(get_hooks, BEFORE_TEXTS))
        or any("kickoff" in vars(kind) for kind in own)
    )


def _agent(source: AgentSource) -> dict[str, Any]:
    names = sorted({name for text in source.texts for name in PLACEHOLDER.findall(text or "")})
    if names and TEXTS.missing:
        raise UnsupportedCrew(f"its texts contain inputs, which cannot be filled in: {TEXTS.reason}.")
    task = {
        "id": AGENT,
        "agent": role_of(source.agent),
        "human_input": False,
        "digest": _digest([source.messages], source.agent, (source.response_format,)),
    }
    return {
        "kind": "agent",
        "inputs": sorted({*names, MESSAGES}),
        "required": names if names or source.messages else [MESSAGES],
        "tasks": [task],
        "files": {},
        "file_problem": execution_files.problem(),
        **_tools(source),
    }


def _tools(served: Served) -> dict[str, Any]:
    """List the tools known before any task runs, each with its own name and the name shown to the model."""
    tools = _known_tools(served)
    named = {tool.name: tool_calls.names_of(tool.name) for tool in tools}
    is_open = any(map(open_tools.are_brought_by, agents_of(served)))
    asks = any(isinstance(tool, AskPerson) for tool in tools)
    return {"tools": list(named.values()), "knows_all_tools": not is_open, "asks": asks}


def _known_tools(served: Served) -> list[Any]:
    return [tool for one in (*agents_of(served), *tasks_of(served)) for tool in getattr(one, "tools", None) or ()]


def arguments_problem(served: Served, ask: Mapping[str, Any], text: str) -> str | None:
    """Return why a tool cannot be called with these arguments, worded as the end of a sentence; None if it can.

    :param ask: the state of the question: the tool's name, and the schema of a tool that is unknown until it is used
    """
    name, schema = ask["tool"], ask.get("schema")
    tool = next((each for each in _known_tools(served) if tool_calls.tool_name(each) == name), None)
    if tool is None and schema is None:
        return f"the arguments of {name}, a tool that is not known until its task runs, cannot be checked in advance"
    try:
        if tool is not None:
            tool_arguments.validated(tool, json.loads(text))
        elif schema is not None:
            tool_arguments.check_arguments(schema, json.loads(text))
    except ValueError as problem:
        return f"{name} does not accept these arguments: {problem}"
    return None


def _digest(own_texts: Iterable[Any], agent: Any, models: Iterable[type[BaseModel] | None]) -> str:
    texts = [*own_texts, *(getattr(agent, each, "") for each in ("role", "goal", "backstory"))]
    return digest_of([*texts, *map(_schema, models)])


def _schema(model: type[BaseModel] | None) -> Any:
    """Return an output model's JSON Schema, or the model's name if it has none."""
    with suppress(PydanticInvalidForJsonSchema):
        return model and model.model_json_schema()
    return str(model)


def named_tasks(tasks: Iterable[Task]) -> dict[str, Task]:
    """Assign each task an id that is the same in every process: its name, made unique, or its position in the crew."""
    named: dict[str, Task] = {}
    for place, task in enumerate(tasks, 1):
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
        return role_of(crew.manager_agent) if crew.manager_agent else "Crew Manager"
    return role_of(task.agent)


def _problems(crew: Crew) -> Iterator[str]:
    if not crew.tasks:
        yield "it has no tasks."
    if crew.checkpoint:
        yield "it has checkpoint= set; the service stores finished tasks itself, so leave it out."
    for name, task in named_tasks(crew.tasks).items():
        if FILES.missing and PLACEHOLDER.search(task.output_file or ""):
            yield f"its task {name!r} has inputs in its output_file, whose path cannot be checked: {FILES.reason}."
        if not task.human_input:
            continue
        if seam := first_missing(PEOPLE, CONTINUE) or _remembering(crew, task):
            yield f"its task {name!r} has human_input, but people cannot be asked: {seam.reason}."
        if task.async_execution:
            yield f"its task {name!r} has human_input and async_execution; a waiting task cannot be asynchronous."
        agent = crew.manager_agent if crew.process == Process.hierarchical else task.agent
        if agent is not None and not isinstance(agent, Agent):
            yield (
                f"its task {name!r} has human_input, but its agent is a {type(agent).__name__}, "
                "to which CrewAI does not pass feedback."
            )


def _remembering(crew: Crew, task: Task) -> Seam | None:
    """Return why CrewAI may remember a draft before a person approves it; None if it does not."""
    return task_ends.remembers_drafts() if crew.memory or getattr(task.agent, "memory", None) else None


def refuse_unknown(known: Iterable[Task], asks: Seam | None, step: Any) -> None:
    """Fail before a task that cannot be served and was unknown until now: a tool or a Flow has started its crew.

    :param asks: why people cannot be asked
    """
    if step.kind != "task" or any(step.task is task for task in known):
        return
    if asks and step.task.human_input:
        raise Fatal(f"A task has human_input, but people cannot be asked: {asks.reason}.")
    if FILES.missing and step.task.output_file:
        raise Fatal(f"A task has an output_file whose path cannot be checked: {FILES.reason}.")
