"""The engine's interface to a crew: its description, and a method that runs one segment of an execution.

A segment ends when the crew finishes (`Completed`), when it asks a person to review a task's output (`PendingReview`)
or asks a question in the middle of a task (`PendingQuestion`), or when it raises an exception. The crew raises
`Cancelled` once the job's cancellation is set. Any other exception fails the execution with the error `Type:
message`, or with just the message for `CrewFailed`. All data passed here is plain JSON, because it is stored and may
be read by another process.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypedDict

from crew_service.engine.file_inputs import FileInputs
from crew_service.engine.printed import Printed
from crew_service.engine.tool_rules import ToolRule

STATE_ID = "id"  # in a Flow's inputs: CrewAI reads and overwrites the stored state with that id
STATE_ID_REFUSED = (
    "The input 'id' of a Flow names a stored state to read and overwrite, possibly somebody else's. Omit it; to start "
    "from the state of an earlier execution, use restoreFromStateId."
)


CHANGED_DECISION = "The crew has changed: its tasks no longer match the decision on {}."


class Cancelled(Exception):
    """The segment ended on request, not because the crew failed."""


class BadTarget(ValueError):
    """TARGET does not name a crew that can be served.

    :param trace: the traceback, if its code raised an exception
    """

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


class CrewFailed(Exception):
    """The crew failed and explained why; the message becomes the execution's error unchanged.

    :param refused: the task whose own answer was refused; the recorded answers that led to it must not be reused
    :param unanswered: the numbers of the journal entries whose calls must be repeated
    """

    def __init__(self, text: str = "", *, refused: str | None = None, unanswered: Collection[int] = ()) -> None:
        super().__init__(text)
        self.refused, self.unanswered = refused, unanswered


class CrewKilled(CrewFailed):
    """A signal killed the crew's process; the execution can continue from what the process had reported."""


class Cancellation:
    """A flag that another thread sets once, with a reason; the crew then promptly raises `Cancelled`."""

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
        """Wait for the cancellation; return False on timeout."""
        return self._event.wait(seconds)

    def raise_if_set(self) -> None:
        if self._event.is_set():
            raise Cancelled(self.reason)


class FinishedTask(TypedDict):
    """Fields of every finished task."""

    task_id: str
    agent: str
    output: str
    execution_time: float


class TaskOutput(FinishedTask, total=False):
    """A finished task, as stored and as sent in task webhooks. The engine keeps any other keys without reading them."""

    name: str
    description: str
    expected_output: str
    summary: str
    output_json: Any
    point: Any  # from which the crew continues in another process; never sent


@dataclass(frozen=True)
class TaskInfo:
    """A crew's task; its id is unique within the crew and the same in every process."""

    id: str
    agent: str
    description: str = ""
    human_input: bool = False
    digest: str = ""  # of everything that determines its output


def digest_of(declared: Any) -> str:
    """Hash everything that determines a task's output, given as JSON."""
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Round:
    """One answer from a gated task, and the person's feedback on it."""

    output: str
    feedback: str


@dataclass(frozen=True)
class ReviewDecision:
    """A person's decision, passed to the next segment and kept until the task it concerns is done or waits again."""

    task_id: str
    is_approve: bool
    rounds: tuple[Round, ...]  # oldest first; the last is the one just decided on
    state: dict[str, Any] = field(default_factory=dict)  # the crew's data from `PendingReview`
    outcome: str | None = None  # the person's choice from a Flow's outcomes

    @property
    def output(self) -> str:
        return self.rounds[-1].output

    @property
    def feedback(self) -> str:
        return self.rounds[-1].feedback


@dataclass(frozen=True)
class JournalEntry:
    """A model or tool call, as passed to the next attempt at its task; if it has no answer, it did not finish."""

    number: int  # in the execution, from 1
    task_id: str  # empty outside any task
    part: str  # part of the task: the round of its review, or a nested task
    kind: Literal["model", "tool"]
    key: str  # identifies the request and how many times it was made before
    name: str
    within: str | None = None  # the key of the call that made this call
    answer: str | None = None  # JSON
    once: bool | None = None  # whether its tool may run only once
    prepare: bool | None = None  # whether it is made again, for its effect in the process, when its task begins again
    decision: dict[str, Any] | None = None  # a person's, on this call; it has no `outcome` once carried out
    digest: str | None = None  # of its task, added by the engine


@dataclass(frozen=True)
class Step(JournalEntry):
    """The start or end of a call, as shown to people and as kept in the journal."""

    state: Literal["running", "done", "failed", "unknown"] = "running"
    agent: str = ""  # the agent's role
    seconds: float | None = None  # duration
    usage: dict[str, int] | None = None  # for a model call
    arguments: str | None = None  # JSON, reported at the start, truncated to `LONGEST_TOLD` + 1 characters
    result: str | None = None  # likewise, reported at the end
    is_kept: bool = True  # by the journal
    is_awaited: bool = False  # whether the crew waits until this is stored
    is_approved: bool = False  # by a decision in the journal, which this start carries out


LONGEST_TOLD = 16 * 1024  # characters: more than people see, because secrets are masked before the text is truncated


@dataclass(frozen=True)
class InputFile:
    """A file that the caller gave for an input, or that the crew has written; the database has its content."""

    name: str  # the input's, which is a label and never a path; or a relative path
    id: str
    size: int
    sha256: str
    content_type: str
    in_inputs: bool  # whether the inputs contain it, as `file_inputs.source_of` its hash


@dataclass(frozen=True)
class Job:
    """One segment: the request, the finished tasks, and the decision to continue from."""

    execution_id: str
    inputs: dict[str, Any]
    done: list[TaskOutput] = field(default_factory=list)
    decision: ReviewDecision | None = None
    cancelled: Cancellation = field(default_factory=Cancellation)
    restore_from: str | None = None  # the id of a state that a Flow has stored
    owner: str | None = None  # the user who started the execution; None for the organization
    printed: Printed = field(default_factory=Printed)  # receives the crew's printed output
    steps: int = 0  # the number of the execution's newest step
    recorded: Callable[[], list[JournalEntry]] = list  # reads the journal of unfinished tasks
    flow_state: Callable[[], str | None] = lambda: None  # reads the state that a Flow stored last
    files: list[InputFile] = field(default_factory=list)
    read_file: Callable[[InputFile], Iterator[bytes]] = lambda file: iter(())  # in pieces
    largest_file: int = 0  # bytes that a file of the crew may have
    written: Callable[[], list[InputFile]] = list  # reads which files the crew has written so far, by relative path

    def check_tasks(self, known: Sequence[str]) -> None:
        """Check that a crew with these tasks, in this order, can go on from here.

        :raises CrewFailed: it has changed, so a finished task would run again, or a decision would be lost
        """
        finished = [task["task_id"] for task in self.done]
        first = list(known)[: len(finished)]
        if finished != first:
            raise CrewFailed(
                f"The crew has changed: this execution has finished {', '.join(finished)}, but the crew begins with "
                f"{', '.join(first)}."
            )
        if self.decision and self.decision.task_id not in known:
            raise CrewFailed(CHANGED_DECISION.format(self.decision.task_id))


@dataclass(frozen=True)
class TaskStarted:
    task_id: str
    agent: str = ""


LONGEST_IN_STEP = 10_000  # characters per text, because a tool's result may be huge


@dataclass(frozen=True)
class StepDone:
    """An agent's step: its thought and the tool it used, or its answer as `result`."""

    prompt: str = ""
    thought: str = ""
    tool: str = ""
    tool_input: str = ""
    result: str = ""


@dataclass(frozen=True)
class TaskDone:
    """A finished task; an approved gated task is reported too, with the approved output.

    :param flow_state: the Flow's state then, in a form that only the crew reads; None if unchanged
    :param step: the agent's answer, unless it was reported by itself
    :param following: the task that begins now, which then needs no report of its own
    """

    is_awaited: ClassVar[bool] = True
    task: TaskOutput
    flow_state: str | None = None
    step: StepDone | None = None
    following: TaskStarted | None = None


@dataclass(frozen=True)
class TokensUsed:
    """This segment's total language model usage so far, reported whenever it is known."""

    total: int
    parts: dict[str, int] = field(default_factory=dict)  # prompt_tokens and completion_tokens, if known
    by_task: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """Figures by task and model (an empty string if unknown): only those that have increased in this segment."""


@dataclass(frozen=True)
class StepsReplayed:
    """The calls that this segment answered from the journal, reported before it makes a new call."""

    numbers: list[int]


@dataclass(frozen=True)
class FilePiece:
    """A piece of a file that the crew has written, in order; the last one ends the file.

    Its data is in Base64; None if the file changed while it was read, so that it is not stored.
    """

    name: str  # relative to the execution's folder
    task_id: str  # whose end, or call's end, follows
    size: int  # of the whole file
    data: str | None
    is_last: bool


Progress = TaskStarted | StepDone | TaskDone | TokensUsed | Step | StepsReplayed | FilePiece
Report = Callable[[Progress], None]
"""Returns once the progress is stored; raises `Cancelled` if the segment is no longer wanted."""


@dataclass(frozen=True)
class Completed:
    """The crew's answer. All tasks have been reported as done."""

    output: str
    output_json: dict[str, Any] | None = None


@dataclass(frozen=True)
class PendingReview:
    """A gated task's answer that a person must decide on. The task is reported as done once it is approved."""

    task_id: str
    output: str
    agent: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    question: str | None = None  # for a Flow: its author's question
    outcomes: list[str] | None = None  # for a Flow: the choices; empty for free text
    details: dict[str, Any] = field(default_factory=dict)  # for a Flow: further fields of a flow webhook
    flow_state: str | None = None  # as in `TaskDone`


AskKind = Literal["tool", "question", "unknown_outcome"]


@dataclass(frozen=True)
class PendingQuestion:
    """A call that needs a person in the middle of a task. Its entry stores the decision; the task then continues."""

    kind: AskKind
    entry: JournalEntry
    agent: str = ""
    arguments: dict[str, Any] | None = None  # of the call; None for an agent's question
    text: str = ""  # an agent's question, or why an outcome is unknown
    shown: str = ""  # the call's arguments, as shown in an error
    state: dict[str, Any] = field(default_factory=dict)  # the crew's data for checking changed arguments
    about: str = ""  # the tool's description, if its agent has several tools with this name
    earlier_calls: int = 0  # this task's finished tool calls under no rule, whose effects in the process may be lost
    of_flow: dict[str, Any] | None = (
        None  # if a Flow's method asks with `Flow.ask`: the timeout in seconds, the metadata
    )


Outcome = Completed | PendingReview | PendingQuestion


class Crew(Protocol):
    """One crew, Flow or agent, used by many threads at once; it holds no execution state."""

    @property
    def kind(self) -> Literal["crew", "flow", "agent"]:
        """Return `agent` for one without a crew, whose messages are an input."""
        ...

    @property
    def inputs(self) -> list[str]: ...

    @property
    def required(self) -> list[str]:
        """Return the required inputs."""
        ...

    @property
    def file_inputs(self) -> FileInputs:
        """Return which inputs have a file type."""
        ...

    @property
    def tasks(self) -> list[TaskInfo]: ...

    @property
    def isolation(self) -> Literal["inline", "process"]:
        """Return `process` if user code runs in a separate process, which can be killed."""
        ...

    @property
    def tools(self) -> list[str]:
        """Return the names of the tools that are known before a task runs."""
        ...

    @property
    def knows_all_tools(self) -> bool: ...

    @property
    def rules(self) -> tuple[ToolRule, ...]: ...

    @property
    def secrets(self) -> Sequence[str]:
        """Return the values that must not be shown, beside those in the service's environment."""
        ...

    @property
    def off(self) -> Sequence[str]:
        """Return what the installed CrewAI turns off, each as a clause with its reason."""
        ...

    @property
    def asks(self) -> str | None:
        """Return why the crew asks in the middle of a task, as the beginning of a sentence; None if it does not."""
        ...

    def has_tool(self, rule: ToolRule) -> bool:
        """Return whether the crew may have a tool that matches the rule."""
        ...

    def lost(self, finished: Sequence[TaskOutput], state: dict[str, Any]) -> str | None:
        """Return why another execution cannot go on after these tasks, as a clause; None if it can.

        :param state: the crew's data from the last question that was answered
        """
        ...

    def run(self, job: Job, report: Report) -> Outcome: ...

    def forget_memory(self, before: float, stopping: Cancellation) -> None:
        """Delete what the crew remembered before this time, for all owners."""
        ...

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
        """Return why `text` cannot be the output of a waiting task, as the end of a sentence; None if it can.

        This also checks a JSON object with changed arguments for a waiting call.

        :param state: the crew's data from `PendingReview` or `PendingQuestion`
        :param owner: the execution's, whose memory the check has
        :param report: given what the check's models have used so far, without tasks
        """
        ...
