"""A resume's report on its answer, an XCom for the wait that follows.

It accompanies the returned id, so a wait on `resume.output` needs no other argument. An answer that was left to the
next round was not sent, because its draft has been revised.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_crew_provider.api.answers import FIELDS, DraftId, was_taken
from airflow_crew_provider.api.asks import is_answer
from airflow_crew_provider.compat.task_instance import RelatedTask
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.stored_names import NOT_SENT, REFUSAL, RESUME_KEY, STILL_OPEN
from airflow_crew_provider.task.record import AnswerState
from airflow_crew_provider.wait.watch import OLD_PAUSE_SHOWS, AnsweredDraft

log = logging.getLogger(__name__)


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
    def from_json(cls, value: Any) -> ResumeRecord | None:
        """Read the XCom of a resume from this release or an earlier one; return None for anything else."""
        if not isinstance(value, dict) or not isinstance(value.get("kickoff_id"), str):
            return None
        numbers = {"resumed_at"}
        names = [each.name for each in fields(cls) if each.name != "said"]
        known = [each for each in names if isinstance(value.get(each), int | float if each in numbers else str)]
        return cls(**{name: value[name] for name in known}, said=value)

    def to_json(self) -> Json:
        """Return the XCom."""
        known = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "said"}
        return {**self.said, **known}

    @property
    def state(self) -> AnswerState:
        """The state of the answer."""
        if self.status == NOT_SENT:
            return AnswerState.LEFT
        return AnswerState.SENT if was_taken({**self.said, "status": self.status}) else AnswerState.UNUSED

    @property
    def leaves_edit(self) -> bool:
        """Whether an edit was left to the next round; at a question's deadline, nothing is left to anybody."""
        return self.state is AnswerState.LEFT and self.said.get("edited_output") is not None

    @property
    def question_is_open(self) -> bool:
        """Whether the service refused what the person wrote, so that the same question is asked again."""
        return self.state is AnswerState.LEFT and self.said.get(STILL_OPEN) is True

    @property
    def refusal(self) -> str | None:
        """Why an answer changed nothing, for the person who is asked next; None if it did, or nobody gave one."""
        changed_nothing = self.leaves_edit or self.question_is_open or self.state is AnswerState.UNUSED
        return self.said.get("message") if changed_nothing else None

    def refusal_field(self, execution: Execution) -> Json:
        """Return the field of a pending record that tells its reviewer why this answer did not close the question."""
        is_same = self.question_is_open and self.crew_task_id == execution.crew_task_id
        return {REFUSAL: self.refusal} if is_same else {}

    @property
    def answered(self) -> AnsweredDraft | None:
        """The answered draft, if known; None if its answer was not sent, because the question is then asked again."""
        if self.question_is_open or (self.state is AnswerState.LEFT and is_answer(self.said)):
            return None
        if not self.draft_sha256 or not self.resumed_at:
            return None
        draft = DraftId(self.execution_id, self.crew_task_id, self.draft_sha256)
        return AnsweredDraft(draft, self.resumed_at + OLD_PAUSE_SHOWS)


def last_resume(context: Any, task: RelatedTask, kickoff_id: str) -> ResumeRecord | None:
    """Return the last upstream resume's report on the execution with this id; None if there is none."""
    return max(_resumes(context, task, kickoff_id, upstream=True), key=lambda each: each.resumed_at or 0, default=None)


def resume_before(context: Any, task: RelatedTask, kickoff_id: str) -> ResumeRecord | None:
    """Return the same as `last_resume`, and None if it cannot be read."""
    try:
        return last_resume(context, task, kickoff_id)
    except Exception:
        log.warning(
            "The result of the upstream resume cannot be read; an old pause may be mistaken for a new one",
            exc_info=True,
        )
        return None


def _resumes(context: Any, task: RelatedTask, kickoff_id: str, *, upstream: bool) -> list[ResumeRecord]:
    relatives = task.get_flat_relatives(upstream=upstream) if task.has_dag() else ()
    names = sorted(each.task_id for each in relatives if set(FIELDS) <= set(each.template_fields))
    records = (context["ti"].xcom_pull(task_ids=names, key=RESUME_KEY) or []) if names else []
    read = (ResumeRecord.from_json(each) for each in records)
    return [each for each in read if each is not None and each.kickoff_id == kickoff_id]


def lost_edit(context: Any, task: RelatedTask, execution: Execution, resume: ResumeRecord | None) -> str | None:
    """Return a message if the last resume left an edit for a round that never came, else None."""
    if resume is None or not resume.leaves_edit:
        return None
    if execution.state is ExecutionState.PENDING and execution.crew_task_id in (None, resume.crew_task_id):
        return None
    # If the wait was cleared, the next round may already have ended.
    later = _resumes(context, task, execution.kickoff_id, upstream=False)
    if any(each.state is not AnswerState.LEFT for each in later):
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
