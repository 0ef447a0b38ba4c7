"""Scripted crews: offline, deterministic, described in JSON. Text from inputs and feedback is never a template."""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from crew_service import tracing
from crew_service.engine import tool_rules
from crew_service.engine.crew import (
    LONGEST_IN_STEP,
    BadTarget,
    Cancellation,
    Completed,
    CrewFailed,
    Job,
    JournalEntry,
    PendingReview,
    Report,
    ReviewDecision,
    Step,
    StepDone,
    StepsReplayed,
    TaskDone,
    TaskInfo,
    TaskOutput,
    TaskStarted,
    TokensUsed,
    digest_of,
)
from crew_service.engine.tool_rules import ONCE, JournalOptions, ToolRule

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


class ScriptedStep(BaseModel):
    """A call to a tool that does nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str = Field(min_length=1)
    arguments: dict[str, Any] = {}
    result: str = ""

    @model_validator(mode="before")
    @classmethod
    def _asks_nobody(cls, given: Any) -> Any:
        if isinstance(given, dict) and "ask" in given:
            raise ValueError("this release cannot ask a person in the middle of a task; omit 'ask'")
        return given


class ScriptedTask(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    agent: str = "Agent"
    description: str = ""
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # divided equally between its tools
    steps: list[ScriptedStep] = []
    # True, False, or the name of an optional input whose value `no` or false skips the review.
    human_input: bool | str = False
    tokens: int = Field(default=0, ge=0)  # that the task reports as used
    model: str = ""  # of these tokens
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
            raise ValueError("task ids must be unique")
        return tasks


class ScriptedCrew:
    """A crew that follows its scenario."""

    isolation: Literal["inline", "process"] = "inline"
    kind: Literal["crew", "flow"] = "crew"

    def __init__(self, scenario: dict[str, Any], options: JournalOptions | None = None) -> None:
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
            TaskInfo(task.id, task.agent, task.description, bool(task.human_input), digest_of(_declared(task)))
            for task in self._scenario.tasks
        ]
        self._options = options or JournalOptions()
        self._tools = list(dict.fromkeys(step.tool for task in self._scenario.tasks for step in task.steps))
        names = [[tool] for tool in self._tools]
        if problem := tool_rules.problem(self._options.rules, names, is_kept=self._options.is_kept):
            raise BadTarget(problem)

    @property
    def has_once(self) -> bool:
        return any(rule.rule == ONCE for rule in self._options.rules)

    def has_tool(self, rule: ToolRule) -> bool:
        return rule.matches(self._tools)

    def edit_problem(self, task_id: str, state: dict[str, Any], text: str, stopping: Cancellation) -> str | None:
        return None

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        outputs = [task["output"] for task in job.done]
        meter, tools = _Tokens(report), _Tools(job, report, self._options)
        for task in self._scenario.tasks[len(job.done) :]:
            gate = job.gate if job.gate and job.gate.task_id == task.id else None
            if gate and gate.is_approve:
                text, seconds = gate.output, gate.state["seconds"]
            else:
                with tracing.task(task.id, task.agent, **_told(task)):
                    text, seconds = _perform(task, job, gate, report, tools)
                meter.add(task)
                if _asks_a_person(task, job):
                    return PendingReview(task.id, text, task.agent, {"seconds": seconds})
            report(TaskDone(_finished(task, job, text, seconds)))
            outputs.append(text)
        return Completed(outputs[-1], _object(outputs[-1]))


class _Tokens:
    """Counts the usage that the tasks of a segment report."""

    def __init__(self, report: Report) -> None:
        self._used = 0
        self._report = report

    def add(self, task: ScriptedTask) -> None:
        self._used += task.tokens
        if task.tokens:
            of_task = {"total_tokens": task.tokens, "completion_tokens": task.tokens}
            self._report(TokensUsed(self._used, {"completion_tokens": self._used}, {task.id: {task.model: of_task}}))


def _declared(task: ScriptedTask) -> dict[str, Any]:
    return task.model_dump(exclude_defaults=True)


class _Tools:
    """The tools of one segment. They only wait; earlier results come from the journal."""

    def __init__(self, job: Job, report: Report, options: JournalOptions) -> None:
        self._job = job
        self._report = report
        self._options = options
        recorded = job.recorded() if options.is_kept else []
        self._recorded = {(entry.task_id, entry.part, entry.key): entry for entry in recorded}
        self._newest = job.steps
        self._replayed: list[int] = []

    def use_all(self, task: ScriptedTask, part: str, values: dict[str, Any]) -> None:
        seconds = task.seconds / len(task.steps) if task.steps else 0.0
        for place, step in enumerate(task.steps, 1):
            arguments = json.dumps(_filled(step.arguments, values), ensure_ascii=False)
            result = json.dumps(_fill(step.result, values), ensure_ascii=False)
            asked = f"{place}\0{step.tool}\0{arguments}".encode("utf-8", "replace")
            key = hashlib.sha256(asked).hexdigest()[:32]
            once = tool_rules.rule_of(self._options.rules, [step.tool]) == ONCE or None
            entry = JournalEntry(0, task.id, part, "tool", key, step.tool, once=once)
            self._use(entry, task.agent, arguments, result, seconds)
        self._tell()

    def _use(self, entry: JournalEntry, agent: str, arguments: str, result: str, seconds: float) -> None:
        earlier = self._recorded.get((entry.task_id, entry.part, entry.key))
        if earlier and earlier.answer is not None:
            self._replayed.append(earlier.number)
            return
        self._tell()
        if earlier and (earlier.once or entry.once):  # its rule may have been taken away since
            raise CrewFailed(tool_rules.not_known(entry.name, arguments, "it had begun and has no recorded end"))
        self._newest += earlier is None
        about = {**vars(entry), "number": earlier.number if earlier else self._newest, "agent": agent}
        began = time.monotonic()
        self._write(Step(**about, arguments=arguments, is_kept=earlier is None))
        self._job.cancelled.wait(seconds)
        self._job.cancelled.raise_if_set()
        took = round(time.monotonic() - began, 3)
        self._write(Step(**{**about, "answer": result, "state": "done", "seconds": took, "result": result}))

    def _write(self, step: Step) -> None:
        if self._options.is_kept:
            self._report(step)

    def _tell(self) -> None:
        if self._replayed:
            self._report(StepsReplayed(self._replayed))
            self._replayed = []


def _perform(
    task: ScriptedTask, job: Job, gate: ReviewDecision | None, report: Report, tools: _Tools
) -> tuple[str, float]:
    """Run the task once; the seconds include earlier rounds."""
    started = time.monotonic()
    report(TaskStarted(task.id, task.agent))
    values = _values(job, gate)
    tools.use_all(task, f"round {len(gate.rounds)}" if gate else "", values)
    if not task.steps:
        job.cancelled.wait(task.seconds)
    job.cancelled.raise_if_set()
    if task.error is not None:
        raise CrewFailed(_fill(task.error, values))
    script = task.revised if gate and task.revised is not None else task.output
    text = _fill(script, values)
    prompt, thought = _fill(task.description, values), f"{task.agent} is done."
    report(StepDone(prompt=prompt, thought=thought, result=text[:LONGEST_IN_STEP]))
    earlier = gate.state["seconds"] if gate else 0.0
    return text, round(earlier + time.monotonic() - started, 3)


def _told(task: ScriptedTask) -> dict[str, Any]:
    """Return the usage for the task's span."""
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


def _filled(value: Any, values: dict[str, Any]) -> Any:
    """Fill the strings in a JSON value."""
    if isinstance(value, str):
        return _fill(value, values)
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return {name: _filled(each, values) for name, each in value.items()} if isinstance(value, dict) else value


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
