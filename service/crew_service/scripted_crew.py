"""Scripted crews: offline, deterministic, described in JSON. Text from inputs and feedback is never a template."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from crew_service import tracing
from crew_service.engine.crew import (
    Completed,
    CrewFailed,
    Job,
    PendingReview,
    Report,
    ReviewDecision,
    StepDone,
    TaskDone,
    TaskInfo,
    TaskOutput,
    TaskStarted,
    TokensUsed,
)

DEMO: dict[str, Any] = {
    "inputs": ["topic"],
    "tasks": [
        {
            "id": "research_task",
            "agent": "Researcher",
            "description": "Collect notes on {topic}.",
            "seconds": 1.0,
            "output": "Notes on {topic}: what it is, why it matters, and what people get wrong about it.",
        },
        {
            "id": "outline_task",
            "agent": "Planner",
            "description": "Order the notes on {topic}.",
            "seconds": 1.0,
            "output": "Outline on {topic}: an introduction, three points, an outlook.",
        },
        {
            "id": "draft_task",
            "agent": "Writer",
            "description": "Write a draft on {topic} and show it to a person.",
            "seconds": 1.0,
            "human_input": "review",
            "output": "Draft {revision} on {topic}: a short introduction, three points and an outlook.",
            "revised": "Draft {revision} on {topic}, after: {feedback}",
        },
    ],
}

PLACEHOLDER = re.compile(r"\{(\w+)\}")


class ScriptedTask(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    agent: str = "Agent"
    description: str = ""
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    # True, False, or the name of an optional input whose value `no` or false skips the review.
    human_input: bool | str = False
    tokens: int = Field(default=0, ge=0)  # that the task claims to use
    model: str = ""  # of these
    output: str = ""
    revised: str | None = None
    error: str | None = None


class Scenario(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    inputs: list[str] = []
    tasks: list[ScriptedTask] = Field(min_length=1)

    @field_validator("tasks")
    @classmethod
    def _ids_are_unique(cls, tasks: list[ScriptedTask]) -> list[ScriptedTask]:
        if len({task.id for task in tasks}) < len(tasks):
            raise ValueError("the ids of the tasks must differ")
        return tasks


class ScriptedCrew:
    """A crew that does what its scenario says."""

    isolation: Literal["inline", "process"] = "inline"
    kind: Literal["crew", "flow"] = "crew"

    def __init__(self, scenario: dict[str, Any]) -> None:
        try:
            self._scenario = Scenario.model_validate(scenario)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "scenario"
            raise ValueError(f"{where}: {first['msg']}") from None
        self.required = list(self._scenario.inputs)
        optional = [task.human_input for task in self._scenario.tasks if isinstance(task.human_input, str)]
        self.inputs = list(dict.fromkeys([*self.required, *optional]))
        self.tasks = [
            TaskInfo(task.id, task.agent, task.description, bool(task.human_input)) for task in self._scenario.tasks
        ]

    def edit_problem(self, task_id: str, state: dict[str, Any], text: str) -> str | None:
        return None

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        outputs = [task["output"] for task in job.done]
        meter = _Tokens(self._scenario.tasks, job, report)
        for task in self._scenario.tasks[len(job.done) :]:
            gate = job.gate if job.gate and job.gate.task_id == task.id else None
            if gate and gate.is_approve:
                text, seconds = gate.output, gate.state["seconds"]
            else:
                with tracing.task(task.id, task.agent, **_told(task)):
                    text, seconds = _perform(task, job, gate, report)
                meter.add(task)
                if _asks_a_person(task, job):
                    return PendingReview(task.id, text, task.agent, {"seconds": seconds, "tokens": meter.total})
            report(TaskDone(_finished(task, job, text, seconds)))
            outputs.append(text)
        return Completed(outputs[-1], _object(outputs[-1]), meter.usage)


class _Tokens:
    """Counts what the tasks claim to use, over all segments."""

    def __init__(self, tasks: list[ScriptedTask], job: Job, report: Report) -> None:
        state = job.gate.state if job.gate else {}
        self._before: int = state.get("tokens", sum(task.tokens for task in tasks[: len(job.done)]))
        self.total = self._before
        self._report = report

    def add(self, task: ScriptedTask) -> None:
        self.total += task.tokens
        if task.tokens:
            used = self.total - self._before
            of_task = {"total_tokens": task.tokens, "completion_tokens": task.tokens}
            self._report(TokensUsed(used, {"completion_tokens": used}, {task.id: {task.model: of_task}}))

    @property
    def usage(self) -> dict[str, int]:
        return {"total_tokens": self.total, "prompt_tokens": 0, "completion_tokens": self.total}


def _perform(task: ScriptedTask, job: Job, gate: ReviewDecision | None, report: Report) -> tuple[str, float]:
    """Do the task once; the seconds count the earlier rounds too."""
    started = time.monotonic()
    report(TaskStarted(task.id, task.agent))
    job.cancelled.wait(task.seconds)
    job.cancelled.raise_if_set()
    values = _values(job, gate)
    if task.error is not None:
        raise CrewFailed(_fill(task.error, values))
    script = task.revised if gate and task.revised is not None else task.output
    text = _fill(script, values)
    report(StepDone(prompt=_fill(task.description, values), thought=f"{task.agent} is done.", result=text))
    earlier = gate.state["seconds"] if gate else 0.0
    return text, round(earlier + time.monotonic() - started, 3)


def _told(task: ScriptedTask) -> dict[str, Any]:
    """Return what the task's span has of its usage."""
    return {"gen_ai.usage.output_tokens": task.tokens} if task.tokens else {}


def _asks_a_person(task: ScriptedTask, job: Job) -> bool:
    if isinstance(task.human_input, str):
        return job.inputs.get(task.human_input, True) not in (False, "no", "false")
    return task.human_input


def _values(job: Job, gate: ReviewDecision | None) -> dict[str, Any]:
    revision = len(gate.rounds) + 1 if gate else 1
    return {**job.inputs, "revision": revision, "feedback": gate.feedback if gate else ""}


def _fill(template: str, values: dict[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        found = values.get(match[1], match[0])
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    return PLACEHOLDER.sub(value, template)


def _finished(task: ScriptedTask, job: Job, text: str, seconds: float) -> TaskOutput:
    return TaskOutput(
        task_id=task.id,
        name=task.id,
        agent=task.agent,
        description=_fill(task.description, _values(job, None)),
        expected_output="",
        summary=text[:80],
        output=text,
        output_json=_object(text),
        execution_time=seconds,
    )


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
