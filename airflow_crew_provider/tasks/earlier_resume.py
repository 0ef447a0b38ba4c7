"""What a wait reads about the resume before it: which draft was answered, and when.

The resume stores it in its XCom, so a wait that gets `resume.output` as its kickoff id needs no further argument.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow_crew_provider.core.review import FIELDS, AnsweredDraft, Draft
from airflow_crew_provider.core.stored_names import NOT_SENT, RESUME_KEY
from airflow_crew_provider.models import Execution, ExecutionState, Json

# For how many seconds after a resume a status with the draft that was answered is the old pause, no new question.
OLD_PAUSE_SHOWS = 60.0

log = logging.getLogger(__name__)


def resume_before(context: Any, task: Any, kickoff_id: str) -> Json | None:
    """Return what the last resume upstream said about the execution with this id; None without one."""
    upstream = task.get_flat_relatives(upstream=True) if task.has_dag() else ()
    names = sorted(each.task_id for each in upstream if set(FIELDS) <= set(each.template_fields))
    try:
        found = (context["ti"].xcom_pull(task_ids=names, key=RESUME_KEY) or []) if names else []
    except Exception:
        log.warning(
            "What the resume upstream has done cannot be read; an old pause may be taken for new", exc_info=True
        )
        return None
    matching = [each for each in found if isinstance(each, dict) and each.get("kickoff_id") == kickoff_id]
    return max(matching, key=lambda each: each.get("resumed_at") or 0, default=None)


def answered_before(context: Any, task: Any, kickoff_id: str) -> AnsweredDraft | None:
    """Return the draft that the last resume upstream has answered, where the execution keeps its id."""
    resume = resume_before(context, task, kickoff_id)
    if resume is None or not resume.get("draft_sha256") or not resume.get("resumed_at"):
        return None
    draft = Draft(resume["execution_id"], resume["crew_task_id"], resume["draft_sha256"])
    return AnsweredDraft(draft, resume["resumed_at"] + OLD_PAUSE_SHOWS)


def lost_edit(resume: Json | None, execution: Execution) -> str | None:
    """Return what to say where an edit was left to a next round of its task, and there is none; None elsewhere.

    :param resume: what the last resume upstream said
    """
    if resume is None or resume.get("status") != NOT_SENT:
        return None
    task = resume["crew_task_id"]
    if execution.state is ExecutionState.PENDING and execution.crew_task_id in (None, task):
        return None
    where = "is completed" if execution.state is ExecutionState.COMPLETED else f"waits at task {execution.crew_task_id}"
    return (
        f"The edited draft of task {task} was not applied: somebody else has approved the task without it, and "
        f"execution {resume['execution_id']} {where} by now. The edited text is in the XCom crew_decision of its "
        "review. What the crew has written stays at the service"
    )
