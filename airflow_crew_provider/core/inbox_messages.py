"""What webhooks have reported under one registration: questions to a person, and progress. Pure and bounded.

A message is stored once; a repeated one changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_crew_provider.core.request_parts import LONGEST_ID
from airflow_crew_provider.core.status_parser import json_object_in, object_fields
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.models import Execution, ExecutionState, Json, canonical_json

MOST_QUESTIONS = 50  # of one registration; a service asks once
LONGEST_LINE = 200
TASK, STEP, CREW = "task", "step", "crew"


@dataclass(frozen=True)
class HumanInputRequest:
    """A task of the crew waits for a person (observed dialect, Waiting for a person)."""

    task_id: str
    output: str
    kickoff_id: str | None
    execution_id: str | None

    @classmethod
    def read(cls, body: Any) -> HumanInputRequest:
        """Read a webhook's body."""
        task_id, kickoff_id, execution_id = (_id(body, name) for name in ("task_id", "kickoff_id", "execution_id"))
        if not task_id or not (kickoff_id or execution_id):
            raise CrewProtocolError("The webhook lacks task_id, or both kickoff_id and execution_id")
        return cls(task_id, draft_text(body.get("task_output")), kickoff_id, execution_id)

    @property
    def ids(self) -> set[str]:
        """The ids under which the service knows the execution."""
        return {each for each in (self.kickoff_id, self.execution_id) if each}

    def as_execution(self, kickoff_id: str) -> Execution:
        """Return what a poll would have returned if the status showed the question."""
        return pending_execution(kickoff_id, self.task_id, self.output)


@dataclass(frozen=True)
class InboxMessages:
    """Everything that arrived under one registration; of all questions but the newest only the id."""

    registration: str
    question: Json | None = None
    asked: list[str] = field(default_factory=list)
    tasks: int = 0
    steps: int = 0
    last: str = ""
    succeeded: bool = False

    @classmethod
    def of(cls, value: Any, registration: str) -> InboxMessages:
        """Read what was stored; what belongs to another registration does not count."""
        if isinstance(value, dict) and value.get("registration") == registration:
            return cls(**value)
        return cls(registration)

    def as_dict(self) -> Json:
        """Return plain JSON."""
        return asdict(self)

    @property
    def newest(self) -> HumanInputRequest | None:
        """The open question, as far as webhooks report it."""
        return HumanInputRequest(**self.question) if self.question else None

    @property
    def full(self) -> bool:
        """Whether the limit of questions is reached."""
        return len(self.asked) >= MOST_QUESTIONS

    def asking(self, question: HumanInputRequest) -> InboxMessages:
        """Return the messages with a question added."""
        return replace(self, question=asdict(question), asked=[*self.asked, question.task_id])

    def with_progress(self, kind: str, body: Any) -> InboxMessages:
        """Return the messages with progress added."""
        if not isinstance(body, dict):
            raise CrewProtocolError("The webhook is not an object")
        if kind == CREW:
            return replace(self, succeeded=True, last="the crew has succeeded")
        if kind == TASK:
            line = f"task {body.get('name') or '?'} of {body.get('agent') or '?'} is done"
            return replace(self, tasks=self.tasks + 1, last=_line(line))
        line = str(body.get("thought") or body.get("tool") or body.get("result") or "a step")
        return replace(self, steps=self.steps + 1, last=_line(line))

    @property
    def progress(self) -> str:
        """Return the latest progress in one line."""
        return f"{self.tasks} tasks and {self.steps} steps, the last: {self.last}" if self.last else ""


def draft_text(output: Any) -> str:
    """Return the draft that a webhook carries as text, whatever JSON it is."""
    return output if isinstance(output, str) else "" if output is None else canonical_json(output)


def pending_execution(kickoff_id: str, crew_task_id: str, output: str, **more: Any) -> Execution:
    """Return an execution that waits for a person, as a webhook says."""
    return Execution(
        kickoff_id=kickoff_id,
        state=ExecutionState.PENDING,
        raw_state="reported by webhook",
        output=output,
        **object_fields(json_object_in(output)),
        crew_task_id=crew_task_id,
        **more,
    )


def is_of_another(ids: set[str], root: str | None, posted: str | None) -> bool:
    """Whether a message is of another execution than the one that a registration was made for.

    :param root: the first kickoff's id, if it is known yet
    :param posted: the id that the service gave when it was given the registration, if it is known yet
    """
    known = {each for each in (root, posted) if each}
    if posted is None:
        return bool(known) and not ids & known
    return not ids <= known


def completed_id(body: Any) -> str:
    """Return the id of the execution that a crew's webhook reports as completed; nothing else of it is read."""
    kickoff_id = _id(body, "kickoff_id")
    if not kickoff_id:
        raise CrewProtocolError("The webhook lacks kickoff_id")
    return kickoff_id


def _id(body: Any, name: str) -> str | None:
    value = body.get(name) if isinstance(body, dict) else None
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value.encode("utf-8", "replace")) <= LONGEST_ID:
        raise CrewProtocolError(f"The webhook's {name} is no id")
    return value


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
