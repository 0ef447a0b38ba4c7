"""Runs an agent without a crew, as an execution with one task.

What it is told are the caller's messages or, without them, the `input` of its file or its goal. Its calls have the same
journal as those of a crew's task.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crewai import Agent
from pydantic import BaseModel

from crew_service.crewai import execution_files, flow_values, journal, task_outputs, usage
from crew_service.crewai.callbacks import listen_to_steps
from crew_service.crewai.internals import crew_tasks
from crew_service.crewai.internals.declared import DECLARED
from crew_service.engine import agent_messages
from crew_service.engine.agent_messages import AGENT, MESSAGES
from crew_service.engine.crew import Completed, CrewFailed, Job, Report, TaskDone, TaskOutput, TaskStarted


@dataclass(frozen=True)
class AgentSource:
    """
    :param response_format: the model of its answer
    :param messages: what it is told if the caller gives no messages; empty for its goal
    """

    agent: Agent
    response_format: type[BaseModel] | None = None
    messages: str | list[dict[str, Any]] = ""

    @classmethod
    def of_instance(cls, agent: Agent) -> AgentSource:
        return cls(agent, getattr(agent, "response_format", None))  # a field of subclasses, and of later versions

    @classmethod
    def declared(cls, content: dict[str, Any], path: Path) -> AgentSource:
        messages = content.get("input") or ""
        root = path.parent.parent if path.parent.name == "agents" else path.parent
        agent, model, *_ = DECLARED["load_agent_from_definition"](
            {**content, "input": messages}, source=path, project_root=root
        )
        return cls(agent, model, messages)

    @property
    def texts(self) -> list[str]:
        """Return the texts that inputs are filled into."""
        text = self.messages if isinstance(self.messages, str) else ""
        return [self.agent.role, self.agent.goal, self.agent.backstory, text]

    def begin(self, inputs: dict[str, Any]) -> str | list[dict[str, Any]]:
        """Fill in the agent's texts; return what it is told."""
        if problem := agent_messages.problem(inputs):
            raise CrewFailed(problem)
        values = {name: value for name, value in inputs.items() if name != MESSAGES}
        template = self.messages
        if values:
            self.agent.interpolate_inputs(values)
            template = crew_tasks.filled(template, values) if isinstance(template, str) else template
        messages: str | list[dict[str, Any]] = inputs.get(MESSAGES) or template or self.agent.goal
        return messages


class AgentRun:
    def __init__(self, source: AgentSource, job: Job, report: Report) -> None:
        self._source, self._job = source, job
        self._report = usage.TokenMeter(report, lambda _: AGENT, usage.models_of([source.agent]))

    def run(self) -> Completed:
        for done in self._job.done:  # the process was killed after its only task
            return _completed(done)
        source, began = self._source, time.monotonic()
        messages = source.begin(self._job.inputs)
        role = crew_tasks.role_of(source.agent)
        self._report(TaskStarted(AGENT, role))
        journal.enter(AGENT)
        listen_to_steps([source.agent], self._report)
        files: dict[str, Any] = execution_files.of_kickoff(self._job)
        try:
            result = source.agent.kickoff(messages, source.response_format, **files)  # type: ignore[arg-type]
        finally:
            self._report.tell()
        seconds, description = round(time.monotonic() - began, 3), messages if isinstance(messages, str) else ""
        record = task_outputs.of_value(
            AGENT, crew_tasks.role_of(source.agent), result, seconds, description=description
        )
        self._report(TaskDone(record))
        return _completed(record)


def _completed(record: TaskOutput) -> Completed:
    """Return the agent's answer; JSON in it is an object, as in a crew's, even if the agent returned a string."""
    fields = record.get("output_json")
    return Completed(record["output"], flow_values.json_object(record["output"]) if fields is None else fields)
