"""A person's answer, the draft that it was given to, and whether it may be sent as things stand. Pure.

An answer belongs to one draft: an execution, a task of the crew, and the hash of the text that was shown. A status
that does not show which draft waits never counts as permission to send.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_crew_provider.core.feedback import feedback_to_send, strict_bool
from airflow_crew_provider.core.request_parts import path_segment
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import EditedOutput, Execution, ExecutionState, Json, output_sha256

FIELDS = ("execution_id", "crew_task_id", "human_feedback", "is_approve", "outcome")


@dataclass(frozen=True)
class Draft:
    """What a person was shown. Without a hash all drafts of the task are the same."""

    execution_id: str
    crew_task_id: str
    output_sha256: str | None = None

    def waits_in(self, seen: Execution) -> bool:
        """Whether an execution waits for an answer to this draft."""
        if seen.state is not ExecutionState.PENDING or seen.crew_task_id not in (None, self.crew_task_id):
            return False
        return self.output_sha256 is None or is_hash_of(self.output_sha256, seen)


def hash_of(seen: Execution) -> str:
    """Hash the draft that an execution waits with, as its record does."""
    return output_sha256(seen.output)


def is_hash_of(named: str, seen: Execution) -> bool:
    """Whether a hash is of the draft that an execution waits with; before 0.2 that of an object was of its one form."""
    return named == hash_of(seen) or (isinstance(seen.handed_on, dict) and named == output_sha256(seen.handed_on))


@dataclass(frozen=True)
class ReviewAnswer:
    """A person's answer as it is sent. With an ``outcome``, which is of a Flow, ``is_approve`` may be None."""

    execution_id: str
    crew_task_id: str
    human_feedback: str
    is_approve: bool | None
    output_sha256: str | None = None
    outcome: str | None = None
    edited_output: str | None = None

    @classmethod
    def of(cls, source: Json) -> ReviewAnswer:
        """Read a review or the four fields; what is not an answer is refused."""
        outcome = _outcome(source.get("outcome"))
        needed = ("execution_id", "crew_task_id", *(() if outcome else ("is_approve",)))
        missing = [name for name in needed if source.get(name) is None]
        if missing:
            raise CrewInvalidInput(f"The answer lacks {', '.join(missing)}; nothing was sent")
        given = source.get("is_approve")
        is_approve = None if given is None else strict_bool(given)
        text = _text_to_send(is_approve, outcome, _text(source.get("human_feedback")))
        ids = source["execution_id"], source["crew_task_id"]
        for each in ids:
            path_segment(each)
        return cls(*ids, text, is_approve, source.get("output_sha256"), outcome, _edited(source, is_approve))

    @property
    def request(self) -> Json:
        """Return what names this answer; a crew's as release 0.1 named it."""
        later = ("outcome", "edited_output")
        return {name: value for name, value in vars(self).items() if name not in later or value is not None}

    @property
    def edit(self) -> EditedOutput | None:
        """Return the text that is approved instead of the draft."""
        if self.edited_output is None or self.output_sha256 is None:
            return None
        return EditedOutput(self.edited_output, self.output_sha256)

    def draft(self, seen_before: str | None = None) -> Draft:
        """Return the draft that was answered; ``seen_before`` is the hash to go by where the answer brings none."""
        return Draft(self.execution_id, self.crew_task_id, self.output_sha256 or seen_before)


def _outcome(given: Any) -> str | None:
    if given is None or (isinstance(given, str) and given.strip()):
        return given
    raise CrewInvalidInput("outcome is not one of the Flow's words; nothing was sent")


def _edited(source: Json, is_approve: bool | None) -> str | None:
    """Read an edited draft, which goes with an approval of the draft that was shown and nothing else."""
    given = source.get("edited_output")
    if given is None or (isinstance(given, str) and is_approve and source.get("output_sha256")):
        return given
    raise CrewInvalidInput("edited_output is no text, or goes without an approval of a draft; nothing was sent")


def _text_to_send(is_approve: bool | None, outcome: str | None, feedback: str) -> str:
    """Return the text beside an outcome, or instead of one: never an empty one, which a Flow may take as an approval.

    An empty text takes the first outcome where the Flow has no default (observed Flows, answers).
    """
    if outcome is not None:
        return feedback if feedback.strip() else outcome
    assert is_approve is not None
    return feedback_to_send(is_approve, feedback)


def _text(given: Any) -> str:
    if not isinstance(given or "", str):
        raise CrewInvalidInput("human_feedback is not a text; nothing was sent")
    return given or ""


@dataclass(frozen=True)
class AnsweredDraft:
    """A draft that was answered: for a while the service may still show it as waiting.

    :param until: how long, in epoch seconds
    """

    draft: Draft
    until: float

    def is_shown_by(self, seen: Execution, *, now: float) -> bool:
        """Whether this is the old pause and no new question."""
        return now < self.until and self.draft.waits_in(seen)


class Verdict(StrEnum):
    """Whether an answer may be sent."""

    SEND = "send"  # the draft that was answered waits
    TAKEN = "taken"  # by what can be seen, an earlier try has sent it
    ANOTHER_DRAFT = "another draft"  # waits
    NOT_WAITING = "not waiting"  # for any answer
    UNKNOWN = "unknown"  # an earlier try may have sent it, and the service does not show what came of it
    HIDDEN = "hidden"  # the service does not show the execution


def judge(answer: ReviewAnswer, draft: Draft, seen: Execution, *, sent_before: bool) -> Verdict:
    """Compare the draft that was answered with what the service shows.

    Live deployments do not show it; there every question has a task id of its own, so no other draft can be hit.

    :param sent_before: whether an earlier try may have sent this answer
    """
    if seen.is_live:
        return Verdict.UNKNOWN if sent_before else Verdict.SEND
    if seen.state is ExecutionState.NOT_FOUND:
        return Verdict.HIDDEN
    if draft.waits_in(seen):
        return Verdict.SEND
    if seen.state is ExecutionState.PENDING:
        return Verdict.TAKEN if sent_before and _may_follow(answer, seen) else Verdict.ANOTHER_DRAFT
    return Verdict.TAKEN if sent_before else Verdict.NOT_WAITING


def _may_follow(answer: ReviewAnswer, seen: Execution) -> bool:
    """Whether this answer can have led to the draft that waits: an approval goes on, a revision stays at its task."""
    if answer.is_approve is None:
        return True  # a Flow goes wherever its outcome leads
    return answer.is_approve is not (seen.crew_task_id == answer.crew_task_id)
