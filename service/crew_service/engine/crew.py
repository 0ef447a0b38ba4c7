"""What the engine asks of a crew: describe yourself, and run one segment of an execution.

A segment ends when the crew is finished (`Completed`), when a person is asked (`PendingReview`) or by an exception:
`Cancelled` once the job's cancellation is set, anything else fails the execution as `Type: message`
(`CrewFailed` as its message alone).
Everything that crosses here is plain JSON, since it is stored and read again by another process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

from crew_service.engine.printed import Printed

STATE_ID = "id"  # among the inputs of a Flow: CrewAI reads the stored state of that id, and writes over it
STATE_ID_REFUSED = (
    "The input 'id' of a Flow names a stored state, which may be anybody's, to be read and overwritten. Leave it out; "
    "restoreFromStateId starts from the state of an earlier execution."
)


class Cancelled(Exception):
    """The segment ended on request, not because the crew failed."""


class BadTarget(ValueError):
    """TARGET names no crew that can be served."""


class CrewFailed(Exception):
    """The crew's own account of its failure: the text is the execution's error as it stands."""


class Cancellation:
    """Set once, from another thread, with the reason; the crew returns promptly by raising `Cancelled`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def set(self, reason: str) -> None:
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the cancellation; False when the time passed without one."""
        return self._event.wait(seconds)

    def raise_if_set(self) -> None:
        if self._event.is_set():
            raise Cancelled(self.reason)


class FinishedTask(TypedDict):
    """What every finished task has."""

    task_id: str
    agent: str
    output: str
    execution_time: float


class TaskOutput(FinishedTask, total=False):
    """A finished task, as stored and as sent in task webhooks. The engine reads no other key, but keeps all."""

    name: str
    description: str
    expected_output: str
    summary: str
    output_json: Any
    point: Any  # what the crew goes on from after a crash; never sent to anybody


@dataclass(frozen=True)
class TaskInfo:
    """A task of the crew; ids are unique in a crew and the same in every process."""

    id: str
    agent: str
    description: str = ""
    human_input: bool = False


@dataclass(frozen=True)
class Round:
    """One answer of a gated task and what the person said to it."""

    output: str
    feedback: str


@dataclass(frozen=True)
class ReviewDecision:
    """A person's decision, given to the segment that follows it and kept until that task is done or waits again."""

    task_id: str
    is_approve: bool
    rounds: tuple[Round, ...]  # oldest first; the last is the one just decided
    state: dict[str, Any] = field(default_factory=dict)  # what the crew gave with `PendingReview`
    outcome: str | None = None  # the one that the person chose, of those that a Flow offered

    @property
    def output(self) -> str:
        return self.rounds[-1].output

    @property
    def feedback(self) -> str:
        return self.rounds[-1].feedback


@dataclass(frozen=True)
class Job:
    """One segment: what was asked, what is finished already, and the decision that it goes on from."""

    execution_id: str
    inputs: dict[str, Any]
    done: list[TaskOutput] = field(default_factory=list)
    gate: ReviewDecision | None = None
    cancelled: Cancellation = field(default_factory=Cancellation)
    restore_from: str | None = None  # the id of a state that a Flow has stored itself
    printed: Printed = field(default_factory=Printed)  # takes what the crew prints


@dataclass(frozen=True)
class TaskStarted:
    task_id: str
    agent: str = ""


@dataclass(frozen=True)
class StepDone:
    prompt: str = ""
    thought: str = ""
    tool: str = ""
    tool_input: str = ""
    result: str = ""


@dataclass(frozen=True)
class TaskDone:
    """A finished task; an approved gated task is reported too, with the output that was approved."""

    task: TaskOutput


@dataclass(frozen=True)
class TokensUsed:
    """What this segment has used of language models so far, all in all; reported as often as it is known."""

    total: int
    parts: dict[str, int] = field(default_factory=dict)  # prompt_tokens and completion_tokens, where known
    by_task: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """Figures by task and model, both empty where they are not known: of this segment, those that have grown."""


Progress = TaskStarted | StepDone | TaskDone | TokensUsed
Report = Callable[[Progress], None]
"""Returns once the progress is stored; raises `Cancelled` when the segment is no longer wanted."""


@dataclass(frozen=True)
class Completed:
    """The crew's answer. Every task was reported as done before."""

    output: str
    output_json: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


@dataclass(frozen=True)
class PendingReview:
    """A gated task has an answer and a person decides on it. The task is reported as done after the approval."""

    task_id: str
    output: str
    agent: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    question: str | None = None  # of a Flow: what its author asks
    outcomes: list[str] | None = None  # of a Flow: what the person may choose from; empty for free text
    details: dict[str, Any] = field(default_factory=dict)  # of a Flow: what else a flow webhook reports


class Crew(Protocol):
    """One crew or Flow, used by many threads at once; it keeps no state of an execution."""

    @property
    def kind(self) -> Literal["crew", "flow"]: ...

    @property
    def inputs(self) -> list[str]: ...

    @property
    def required(self) -> list[str]:
        """The inputs without which it cannot start."""
        ...

    @property
    def tasks(self) -> list[TaskInfo]: ...

    @property
    def isolation(self) -> Literal["inline", "process"]:
        """`process` when user code runs in a worker process of its own, which can be killed."""
        ...

    def run(self, job: Job, report: Report) -> Completed | PendingReview: ...

    def edit_problem(self, task_id: str, state: dict[str, Any], text: str) -> str | None:
        """Return why a text cannot be the output of a task that waits, as the end of a sentence; None if it can.

        :param state: what the crew gave with `PendingReview`
        """
        ...
