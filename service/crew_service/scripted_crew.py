"""Scripted crews: offline, deterministic, described in JSON. Inputs and feedback are never treated as templates."""

from __future__ import annotations

import hashlib
import json
import re
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from crew_service import tracing
from crew_service.engine import asks, tool_rules
from crew_service.engine.crew import (
    LONGEST_IN_STEP,
    AskKind,
    BadTarget,
    Cancellation,
    Completed,
    CrewFailed,
    FilePiece,
    Job,
    JournalEntry,
    Outcome,
    PendingQuestion,
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
from crew_service.engine.drafts import json_object_in
from crew_service.engine.file_inputs import FileInputs
from crew_service.engine.files import TEXT
from crew_service.engine.tool_rules import APPROVE, NEEDS_JOURNAL, PREPARE, RUN_ONCE, JournalOptions, ToolRule

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

PLACEHOLDER = re.compile(r"\{(\w+(?:\.size|\.sha256)?)\}")
OF_FILE = re.compile(r"\{(\w+)\.(?:size|sha256)\}")


class ScriptedStep(BaseModel):
    """Either a question to a person, or a call, which a person may have to approve, to a tool that does nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str = Field("", description="Required, except for a question.")
    arguments: dict[str, Any] = {}
    result: str = ""
    ask: Literal["tool", "question"] | None = None
    question: str = ""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> ScriptedStep:
        asks_a_question = self.ask == asks.QUESTION
        if asks_a_question and (not self.question.strip() or self.model_fields_set - {"ask", "question"}):
            raise ValueError("a step with 'ask': 'question' needs 'question', and nothing else")
        if not asks_a_question and (not self.tool or self.question):
            raise ValueError("a step needs 'tool', or 'ask': 'question' and 'question'")
        return self


class ScriptedTask(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    agent: str = "Agent"
    description: str = ""
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # divided equally among its steps
    steps: list[ScriptedStep] = []
    # True, False, or the name of an optional input whose value `no` or false skips the review.
    human_input: bool | str = False
    tokens: int = Field(default=0, ge=0)  # reported as used by the task
    model: str = ""  # the model that used these tokens
    output: str = ""
    revised: str | None = None
    error: str | None = None
    files: dict[str, str] = Field({}, description="Files to write: a text, which may have placeholders, by name.")


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
    """A crew that follows a scenario."""

    isolation: Literal["inline", "process"] = "inline"
    knows_all_tools = True
    secrets: Sequence[str] = ()
    off: Sequence[str] = ()
    kind: Literal["crew", "flow"] = "crew"

    def __init__(self, scenario: dict[str, Any], options: JournalOptions | None = None) -> None:
        try:
            self._scenario = Scenario.model_validate(scenario)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "scenario"
            raise ValueError(f"{where}: {first['msg']}") from None
        self.file_inputs = FileInputs({}, names=tuple(sorted(set(OF_FILE.findall(json.dumps(scenario))))))
        self.required = list(self._scenario.inputs)
        optional = [task.human_input for task in self._scenario.tasks if isinstance(task.human_input, str)]
        self.inputs = list(dict.fromkeys([*self.required, *optional]))
        self.tasks = [
            TaskInfo(task.id, task.agent, task.description, bool(task.human_input), digest_of(_declared(task)))
            for task in self._scenario.tasks
        ]
        self._options = options or JournalOptions()
        self.rules = self._options.rules
        steps = [step for task in self._scenario.tasks for step in task.steps]
        self.tools = list(dict.fromkeys(step.tool for step in steps if step.tool))
        names = [[tool] for tool in self.tools]
        if problem := tool_rules.problem(self.rules, names, is_kept=self._options.is_kept):
            raise BadTarget(problem)
        if self._asking and not self._options.is_kept:
            raise BadTarget(f"{self._asking} {NEEDS_JOURNAL}")

    @property
    def asks(self) -> str | None:
        return self._asking or tool_rules.asking(self.rules)

    @property
    def _asking(self) -> str | None:
        asking = (task.id for task in self._scenario.tasks if any(step.ask for step in task.steps))
        return next((f"'ask' in its task {task_id}" for task_id in asking), None)

    def has_tool(self, rule: ToolRule) -> bool:
        return rule.matches(self.tools)

    def lost(self, finished: Sequence[TaskOutput], state: dict[str, Any]) -> str | None:
        """Return None: all outputs are text."""
        return None

    def forget_memory(self, before: float, stopping: Cancellation) -> None:
        """Do nothing, because such a crew has no memory."""

    def edit_problem(
        self,
        task_id: str,
        state: dict[str, Any],
        text: str,
        *,
        owner: str | None,
        stopping: Cancellation,
        report: Report,
    ) -> str | None:
        return None

    def run(self, job: Job, report: Report) -> Outcome:
        try:
            return self._run(job, report)
        except _Asked as pause:
            return pause.question

    def _run(self, job: Job, report: Report) -> Outcome:
        job.check_tasks([task.id for task in self._scenario.tasks])
        outputs = [task["output"] for task in job.done]
        meter, tools = _Tokens(report), _Tools(job, report, self._options)
        has_begun = False
        todo = self._scenario.tasks[len(job.done) :]
        for task, following in zip_longest(todo, todo[1:]):
            gate = job.decision if job.decision and job.decision.task_id == task.id else None
            step = None
            if gate and gate.is_approve:
                text, seconds = gate.output, gate.state["seconds"]
            else:
                if not has_begun:
                    report(_begun(task))
                with tracing.task(task.id, task.agent, **_told(task)):
                    text, seconds, step = _perform(task, job, gate, report, tools)
                meter.add(task)
                if _asks_a_person(task, job):
                    report(step)
                    return PendingReview(task.id, text, task.agent, {"seconds": seconds})
            finished = _finished(task, job, text, seconds)
            report(TaskDone(finished, step=step, following=_begun(following) if following else None))
            has_begun = True
            outputs.append(text)
        return Completed(outputs[-1], json_object_in(outputs[-1]))


class _Tokens:
    """Counts the usage that a segment's tasks report."""

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


class _Asked(Exception):
    """A call needs a person's decision or answer, so the segment ends."""

    def __init__(self, question: PendingQuestion) -> None:
        super().__init__()
        self.question = question


@dataclass(frozen=True)
class _Call:
    """A tool call, and the decision that it needs from a person, if any."""

    entry: JournalEntry
    earlier: JournalEntry | None  # from the last attempt
    agent: str
    arguments: dict[str, Any]
    result: str  # JSON
    ask: AskKind | None

    def asks(self, kind: AskKind, text: str = "", *, earlier_calls: int) -> _Asked:
        is_question = kind == asks.QUESTION
        return _Asked(
            PendingQuestion(
                kind,
                self.entry,
                self.agent,
                None if is_question else self.arguments,
                self.arguments["question"] if is_question else text,
                _json(self.arguments),
                earlier_calls=earlier_calls,
            )
        )


class _Tools:
    """One segment's tools. They only wait; earlier results and people's decisions come from the journal."""

    def __init__(self, job: Job, report: Report, options: JournalOptions) -> None:
        self._job = job
        self._report = report
        self._options = options
        recorded = job.recorded() if options.is_kept else []
        self._recorded = {(entry.task_id, entry.part, entry.key): entry for entry in recorded}
        self._newest = job.steps
        self._replayed: list[int] = []
        self._finished = {(entry.task_id, entry.key) for entry in recorded if self._counts(entry)}

    def _counts(self, entry: JournalEntry) -> bool:
        return (
            entry.answer is not None and not entry.once and not tool_rules.has_rule(self._options.rules, [entry.name])
        )

    def _earlier_calls(self, task_id: str) -> int:
        """Count the task's finished tool calls under no rule."""
        return sum(task == task_id for task, _ in self._finished)

    def use_all(self, task: ScriptedTask, part: str, values: dict[str, Any]) -> None:
        seconds = task.seconds / len(task.steps) if task.steps else 0.0
        for place, step in enumerate(task.steps, 1):
            self._use(self._call(task, part, place, step, values), seconds)
        self._tell()

    def _call(self, task: ScriptedTask, part: str, place: int, step: ScriptedStep, values: dict[str, Any]) -> _Call:
        rule = tool_rules.rule_of(self._options.rules, [step.tool])
        ask = step.ask or (asks.TOOL if rule == APPROVE else None)
        tool, arguments = step.tool, _filled(step.arguments, values)
        if ask == asks.QUESTION:
            tool, arguments = asks.ASK_PERSON, {"question": _fill(step.question, values)}
        content = f"{place}\0{tool}\0{_json(arguments)}".encode("utf-8", "replace")
        key = hashlib.sha256(content).hexdigest()[:32]
        earlier = self._recorded.get((task.id, part, key))
        number = earlier.number if earlier else self._newest + 1
        # The tool's rule may have been removed since the call started.
        once = bool(ask or rule in RUN_ONCE or (earlier and earlier.once)) or None
        entry = JournalEntry(number, task.id, part, "tool", key, tool, once=once, prepare=rule == PREPARE or None)
        changed = asks.arguments_of(earlier)
        arguments = arguments if changed is None else changed
        return _Call(entry, earlier, task.agent, arguments, _json(_fill(step.result, values)), ask)

    def _use(self, call: _Call, seconds: float) -> None:
        entry, earlier = call.entry, call.earlier
        if earlier and earlier.answer is not None:
            self._replayed.append(earlier.number)
            return
        self._tell()
        is_allowed = asks.is_allowed(earlier)
        if earlier and asks.is_decided(earlier):
            self._write(self._begun(call, is_kept=False))
            self._write(self._ended(call, _json(asks.result_of(earlier))))
            return
        if call.ask and not earlier:
            raise call.asks(call.ask, earlier_calls=self._earlier_calls(entry.task_id))
        if earlier and entry.once and not is_allowed:
            reason = "it had started, and its end was not recorded"
            raise call.asks(asks.UNKNOWN, reason, earlier_calls=self._earlier_calls(entry.task_id))
        self._newest = max(self._newest, entry.number)
        began = time.monotonic()
        self._write(self._begun(call, is_kept=is_allowed or not earlier, is_approved=is_allowed))
        self._job.cancelled.wait(seconds)
        self._job.cancelled.raise_if_set()
        self._write(self._ended(call, call.result, seconds=round(time.monotonic() - began, 3)))

    def _begun(self, call: _Call, *, is_kept: bool, is_approved: bool = False) -> Step:
        decision = {"arguments": call.arguments} if is_approved else None
        about = {**vars(call.entry), "decision": decision, "agent": call.agent}
        return Step(**about, arguments=_json(call.arguments), is_kept=is_kept, is_approved=is_approved)

    def _ended(self, call: _Call, result: str, *, seconds: float = 0.0) -> Step:
        about = {**vars(call.entry), "agent": call.agent, "answer": result}
        return Step(**about, state="done", seconds=seconds, result=result)

    def _write(self, step: Step) -> None:
        if self._counts(step):
            self._finished.add((step.task_id, step.key))
        if self._options.is_kept:
            self._report(step)

    def _tell(self) -> None:
        if self._replayed:
            self._report(StepsReplayed(self._replayed))
            self._replayed = []


def _begun(task: ScriptedTask) -> TaskStarted:
    return TaskStarted(task.id, task.agent)


def _perform(
    task: ScriptedTask, job: Job, gate: ReviewDecision | None, report: Report, tools: _Tools
) -> tuple[str, float, StepDone]:
    """Run the task once; return its text, its run time including earlier rounds, and what its agent answered."""
    started = time.monotonic()
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
    step = StepDone(prompt=prompt, thought=thought, result=text[:LONGEST_IN_STEP])
    for name, content in task.files.items():
        data = _fill(content, values).encode("utf-8", "replace")
        report(FilePiece(name, task.id, len(data), b64encode(data).decode(), is_last=True))
    earlier = gate.state["seconds"] if gate else 0.0
    return text, round(earlier + time.monotonic() - started, 3), step


def _told(task: ScriptedTask) -> dict[str, Any]:
    """Return the usage for the task's span."""
    return {"gen_ai.usage.output_tokens": task.tokens} if task.tokens else {}


def _asks_a_person(task: ScriptedTask, job: Job) -> bool:
    if isinstance(task.human_input, str):
        return job.inputs.get(task.human_input, True) not in (False, "no", "false")
    return task.human_input


def _values(job: Job, gate: ReviewDecision | None) -> dict[str, Any]:
    revision = len(gate.rounds) + 1 if gate else 1
    return {**job.inputs, **_of_files(job), "revision": revision, "feedback": gate.feedback if gate else ""}


def _of_files(job: Job) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for file in job.files:
        values |= {f"{file.name}.size": file.size, f"{file.name}.sha256": file.sha256}
        if file.content_type == TEXT:
            values[file.name] = b"".join(job.read_file(file)).decode()
    return values


def _fill(template: str, values: dict[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        content = values.get(match[1], match[0])
        return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)

    return PLACEHOLDER.sub(value, template)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


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
        output_json=json_object_in(text),
        execution_time=seconds,
    )
