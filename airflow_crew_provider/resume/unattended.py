"""The answer of a task that asks nobody, to a question that would otherwise never be answered."""

from __future__ import annotations

import time

from airflow_crew_provider.api.answers import DraftId, hash_of
from airflow_crew_provider.api.requests import Resume
from airflow_crew_provider.exceptions import CrewBadRequest, CrewError, CrewNotFound, CrewOutcomeUnknown
from airflow_crew_provider.kickoff.post_record import CrewPostLost, PostRecord, Sender, SendOnce, fingerprint
from airflow_crew_provider.models import Execution
from airflow_crew_provider.questions import Terms, question_of
from airflow_crew_provider.stored_names import RESUME_STATE
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.drive import Steps, Worker
from airflow_crew_provider.wait.outcomes import fail_task, is_final
from airflow_crew_provider.wait.watch import OLD_PAUSE_SHOWS, AnsweredDraft


def answer_unattended(task: object, worker: Worker, execution: Execution) -> Steps[AnsweredDraft]:
    """Send the answer of the question's kind; repeating it is safe, because the service accepts only one."""
    kickoff_id, task_id, question = execution.kickoff_id, execution.crew_task_id, question_of(execution)
    assert task_id
    assert question.unattended
    worker.log.warning(
        "Execution %s asks about a call whose outcome is unknown: %s. This task asks nobody, so it answers %r",
        kickoff_id,
        worker.hook.mask_for_log(question.summary),
        question.unattended,
    )
    draft = DraftId(kickoff_id, task_id, hash_of(execution))
    answer = Resume(
        execution_id=kickoff_id,
        crew_task_id=task_id,
        human_feedback="",
        output_sha256=draft.output_sha256 if execution.checks_draft else None,
        **question.meaning(question.unattended, Terms()),
    )
    name = fingerprint({"answer": question.unattended, "to": [kickoff_id, task_id]})
    error: CrewError | None = None
    try:
        posts, attempt = worker.record.part(RESUME_STATE, None), Attempt.of(worker.context, task)
        record = PostRecord(posts, attempt, name, clears_count=False)
        record.begin_try()
        yield SendOnce(record, lambda _: worker.hook.send_resume(answer), Sender.of(worker.hook.connection))
    except CrewPostLost as lost:
        error = lost.error
    except CrewError as refused:
        error = refused
    if isinstance(error, CrewBadRequest | CrewNotFound | CrewOutcomeUnknown):
        worker.log.info("The next poll will show whether the answer was accepted: %s", error)
    elif error:
        fate = f"Execution {kickoff_id} is waiting for an answer"
        fail_task(error, fate if is_final(error) else f"{fate}; a retry of this task answers again")
    return AnsweredDraft(draft, time.time() + OLD_PAUSE_SHOWS)
