"""What a wait reads about the resume before it: which draft was answered, and when.

The resume stores it in its XCom, so a wait that gets `resume.output` as its kickoff id needs no further argument.
"""

from __future__ import annotations

import logging
from typing import Any, TypeGuard

from airflow_crew_provider.api.answers import FIELDS, Draft
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.stored_names import NOT_SENT, RESUME_KEY
from airflow_crew_provider.wait.watch import AnsweredDraft

# For how many seconds after a resume a status with the draft that was answered is the old pause, no new question.
OLD_PAUSE_SHOWS = 60.0

log = logging.getLogger(__name__)


def resume_before(context: Any, task: Any, kickoff_id: str) -> Json | None:
    """Return what the last resume upstream said about the execution with this id; None without one."""
    try:
        found = _resumes(context, task, kickoff_id, upstream=True)
    except Exception:
        log.warning(
            "What the resume upstream has done cannot be read; an old pause may be taken for new", exc_info=True
        )
        return None
    return _latest(found)


def _resumes(context: Any, task: Any, kickoff_id: str, *, upstream: bool) -> list[Json]:
    relatives = task.get_flat_relatives(upstream=upstream) if task.has_dag() else ()
    names = sorted(each.task_id for each in relatives if set(FIELDS) <= set(each.template_fields))
    found = (context["ti"].xcom_pull(task_ids=names, key=RESUME_KEY) or []) if names else []
    return [each for each in found if isinstance(each, dict) and each.get("kickoff_id") == kickoff_id]


def _latest(resumes: list[Json]) -> Json | None:
    return max(resumes, key=lambda each: each.get("resumed_at") or 0, default=None)


def answered_before(context: Any, task: Any, kickoff_id: str) -> AnsweredDraft | None:
    """Return the draft that the last resume upstream has answered, where the execution keeps its id."""
    resume = resume_before(context, task, kickoff_id)
    if resume is None or not resume.get("draft_sha256") or not resume.get("resumed_at"):
        return None
    draft = Draft(resume["execution_id"], resume["crew_task_id"], resume["draft_sha256"])
    return AnsweredDraft(draft, resume["resumed_at"] + OLD_PAUSE_SHOWS)


def lost_edit(context: Any, task: Any, execution: Execution) -> str | None:
    """Return what to say where a resume left an edit to a next round of its task, and there is none; None elsewhere."""
    resume = _latest(_resumes(context, task, execution.kickoff_id, upstream=True))
    if not was_left(resume):
        return None
    answered = resume["crew_task_id"]
    if execution.state is ExecutionState.PENDING and execution.crew_task_id in (None, answered):
        return None
    # A wait that was cleared comes after the next round too.
    if not all(map(was_left, _resumes(context, task, execution.kickoff_id, upstream=False))):
        return None
    where = "is completed" if execution.state is ExecutionState.COMPLETED else f"waits at task {execution.crew_task_id}"
    return (
        f"The edited draft of task {answered} was not applied: somebody else has approved the task without it, and "
        f"execution {resume['execution_id']} {where} by now. The edited text is in the XCom crew_decision of its "
        "review. What the crew has written stays at the service"
    )


def was_left(resume: Json | None) -> TypeGuard[Json]:
    """Whether a resume has sent nothing, since its draft was revised by somebody else."""
    return resume is not None and resume.get("status") == NOT_SENT
