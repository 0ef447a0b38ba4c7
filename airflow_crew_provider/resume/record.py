"""The records of a resume: one of its POST, for the next try, and an XCom for the wait that follows.

States of an answer::

    sending ──taken──> sent
       │ └────lost───> lost: no response came, and the answer may still arrive until `SentAnswer.arrives_until`
       └──its draft was revised──> left to the next round, which has the new draft

The XCom accompanies the returned id, so a wait on `resume.output` needs no other argument.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from airflow_crew_provider.api.answers import FIELDS, Draft
from airflow_crew_provider.api.asks import is_answer
from airflow_crew_provider.compat.task_instance import RelatedTask
from airflow_crew_provider.kickoff.post_record import StoredPost
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.stored_names import NOT_SENT, RESUME_KEY
from airflow_crew_provider.wait.watch import AnsweredDraft

# For this many seconds after a resume, a status with the answered draft shows the old pause, not a new question.
OLD_PAUSE_SHOWS = 60.0

log = logging.getLogger(__name__)


class State(StrEnum):
    """The state of an answer."""

    SENDING = "sending"
    SENT = "sent"
    LOST = "lost"
    LEFT = "left"


# --- in the record of the POST ---


@dataclass(frozen=True)
class SentAnswer:
    """The fields of a POST's record that exist only for an answer.

    :param draft_sha256: the hash of the answered draft
    :param patience: how many seconds the service has to respond
    :param sends_hash: whether the answer contains the hash, so that the service refuses it for another draft
    :param open_round: the number of the question, if the same text may wait again after this answer
    :param execution_id: the answered execution; None in records from releases up to 0.2.0, like the next two
    :param crew_task_id: the service's id of the question
    :param decision: the answer in one word
    :param intended_at: when it was sent, in epoch seconds
    :param lost_at: when the response was given up as lost, in epoch seconds
    :param resumed_at: when the service accepted it, in epoch seconds
    """

    draft_sha256: str | None = None
    patience: float = 0.0
    sends_hash: bool = False
    open_round: int | None = None
    execution_id: str | None = None
    crew_task_id: str | None = None
    decision: str | None = None
    intended_at: float = 0.0
    lost_at: float | None = None
    resumed_at: float | None = None

    @classmethod
    def of(cls, post: StoredPost) -> SentAnswer:
        """Read the answer's fields from a POST's record."""
        return cls.from_json({**post.more, "intended_at": post.intended_at})

    @classmethod
    def from_json(cls, post: Json) -> SentAnswer:
        """Read the record of a POST from this release or an earlier one; missing fields get their defaults."""
        return cls(**{each.name: post[each.name] for each in fields(cls) if post.get(each.name) is not None})

    def to_json(self) -> Json:
        """Return the additional fields of the POST's record."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def state(self) -> State:
        """The state of the answer."""
        if self.resumed_at is not None:
            return State.SENT
        return State.SENDING if self.lost_at is None else State.LOST

    def arrives_until(self, patience: float, lag: float) -> float:
        """Return the time until which an answer whose response was lost may still arrive and show in the status.

        :param patience: the connection's current value, which may have changed since
        :param lag: how many seconds a status may lag behind a POST
        """
        longest = max(patience, self.patience)
        lost_at = self.intended_at + longest if self.lost_at is None else self.lost_at
        return lost_at + longest + lag

    def taken(self, at: float) -> Json:
        """Return the field to record when the service has accepted the answer."""
        return self._moved(resumed_at=at)

    def lost(self, at: float) -> Json:
        """Return the field to record when the response to the answer was lost."""
        return self._moved(lost_at=at)

    def _moved(self, **noted: float) -> Json:
        if self.state is not State.SENDING:
            raise RuntimeError(f"An answer that is {self.state} cannot change its state")
        return noted


# --- in the XCom ---


@dataclass(frozen=True)
class ResumeRecord:
    """A resume's report on its answer.

    :param kickoff_id: the id to poll next
    :param execution_id: the id of the first kickoff
    :param draft_sha256: the hash of the answered draft
    :param resumed_at: when the service accepted the answer, in epoch seconds
    :param status: the service's status, or `NOT_SENT`
    :param said: the whole XCom, including the answer and the service's response
    """

    kickoff_id: str
    execution_id: str = ""
    crew_task_id: str = ""
    draft_sha256: str | None = None
    resumed_at: float | None = None
    status: str | None = None
    said: Json = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, said: Any) -> ResumeRecord | None:
        """Read the XCom of a resume from this release or an earlier one; return None for anything else."""
        if not isinstance(said, dict) or not isinstance(said.get("kickoff_id"), str):
            return None
        numbers = {"resumed_at"}
        names = [each.name for each in fields(cls) if each.name != "said"]
        known = [each for each in names if isinstance(said.get(each), int | float if each in numbers else str)]
        return cls(**{name: said[name] for name in known}, said=said)

    def to_json(self) -> Json:
        """Return the XCom."""
        known = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "said"}
        return {**self.said, **known}

    @property
    def state(self) -> State:
        """The state of the answer."""
        return State.LEFT if self.status == NOT_SENT else State.SENT

    @property
    def answered(self) -> AnsweredDraft | None:
        """The answered draft, if known; None if its answer was not sent, because the question is then asked again."""
        if self.state is State.LEFT and is_answer(self.said):
            return None
        if not self.draft_sha256 or not self.resumed_at:
            return None
        draft = Draft(self.execution_id, self.crew_task_id, self.draft_sha256)
        return AnsweredDraft(draft, self.resumed_at + OLD_PAUSE_SHOWS)


def resume_before(context: Any, task: RelatedTask, kickoff_id: str) -> ResumeRecord | None:
    """Return the last upstream resume's report on the execution with this id; None if there is none."""
    try:
        found = _resumes(context, task, kickoff_id, upstream=True)
    except Exception:
        log.warning(
            "The result of the upstream resume cannot be read; an old pause may be mistaken for a new one",
            exc_info=True,
        )
        return None
    return _latest(found)


def _resumes(context: Any, task: RelatedTask, kickoff_id: str, *, upstream: bool) -> list[ResumeRecord]:
    relatives = task.get_flat_relatives(upstream=upstream) if task.has_dag() else ()
    names = sorted(each.task_id for each in relatives if set(FIELDS) <= set(each.template_fields))
    found = (context["ti"].xcom_pull(task_ids=names, key=RESUME_KEY) or []) if names else []
    read = (ResumeRecord.from_json(each) for each in found)
    return [each for each in read if each is not None and each.kickoff_id == kickoff_id]


def _latest(resumes: list[ResumeRecord]) -> ResumeRecord | None:
    return max(resumes, key=lambda each: each.resumed_at or 0, default=None)


def answered_before(context: Any, task: RelatedTask, kickoff_id: str) -> AnsweredDraft | None:
    """Return the draft that the last upstream resume of the execution answered."""
    resume = resume_before(context, task, kickoff_id)
    return resume.answered if resume else None


def lost_edit(context: Any, task: RelatedTask, execution: Execution) -> str | None:
    """Return a message if a resume left an edit for a round that never came, else None."""
    resume = _latest(_resumes(context, task, execution.kickoff_id, upstream=True))
    if resume is None or resume.state is not State.LEFT:
        return None
    if execution.state is ExecutionState.PENDING and execution.crew_task_id in (None, resume.crew_task_id):
        return None
    # If the wait was cleared, the next round may already have ended.
    later = _resumes(context, task, execution.kickoff_id, upstream=False)
    if any(each.state is not State.LEFT for each in later):
        return None
    where = (
        "has now completed"
        if execution.state is ExecutionState.COMPLETED
        else f"is now waiting at task {execution.shown_task or execution.crew_task_id}"
    )
    return (
        f"The edited draft of task {resume.crew_task_id} was not applied: somebody else approved the task without "
        f"it, and execution {resume.execution_id} {where}. The edited text is in the XCom crew_decision of its "
        "review. The crew's text is still available from the service"
    )
