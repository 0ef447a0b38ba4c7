"""The specification's response shapes (docs/api.md)."""

from __future__ import annotations

from typing import Any, ClassVar

from fastapi import HTTPException
from pydantic import ValidationError
from sqlalchemy.engine import Row

from crew_service.engine.continuing import CannotContinue
from crew_service.engine.crew import Crew
from crew_service.engine.decisions import (
    AlreadyOver,
    AnotherDraft,
    BadAnswer,
    Decision,
    NotWaiting,
    UnknownExecution,
    UnknownTask,
)
from crew_service.engine.drafts import EditedOutput
from crew_service.engine.files import UnknownFile
from crew_service.engine.questions import question_in
from crew_service.engine.usage import Usage
from crew_service.http.auth import DENIED
from crew_service.http.dialects import response_models
from crew_service.http.dialects.base import ONCE, USED, Dialect, problems, task_now
from crew_service.http.dialects.request_models import FlowResumeBody, ResumeBody
from crew_service.storage.states import State
from crew_service.times import iso

WORDS = {
    State.QUEUED: "running",
    State.RUNNING: "running",
    State.WAITING: "pending",
    State.COMPLETED: "completed",
    State.FAILED: "error",
    State.STOPPED: "error",
}


class SpecDialect(Dialect):
    name = "spec"
    fresh_ids = False
    queue_delay = 0.0
    bad_request = 400
    without_header = DENIED
    resume_body = ResumeBody
    flow_resume_body = FlowResumeBody
    refusals: ClassVar = {
        UnknownExecution: (404, "Execution not found"),
        UnknownTask: (404, "Task not found in this execution"),
        NotWaiting: (400, "The execution is not pending human feedback for this task"),
        CannotContinue: (422, "{reason}"),
        UnknownFile: (404, "{reason}"),
        AlreadyOver: (400, "Cannot stop execution. Current state: {state}"),
        BadAnswer: (400, "{reason}"),
        AnotherDraft: (400, "{reason}"),
    }
    columns = (
        *("work_seconds", "completed_tasks", "current_task", "gate", "tasks", "output", "error", "held_until"),
        *USED,
    )
    status_answer = (
        response_models.Running | response_models.Pending | response_models.CompletedStatus | response_models.Failed
    )
    resume_answer = response_models.ResumedModel
    problem = response_models.Problem
    status_problems: ClassVar = {404: "The id is unknown."}
    resume_problems: ClassVar = {404: "The execution or the task is unknown."} | ONCE

    def malformed(self, message: str) -> HTTPException:
        return HTTPException(self.bad_request, message)

    def refuse(self, error: ValidationError) -> HTTPException:
        reasons = (f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in problems(error))
        return HTTPException(self.bad_request, "; ".join(reasons))

    def decision(self, body: dict[str, Any], crew: Crew) -> Decision:
        model = FlowResumeBody if crew.kind == "flow" else ResumeBody
        reply: Any = self.read(model, body)
        is_alone = model is ResumeBody and reply.outcome is None
        if is_alone and "is_approve" not in reply.model_fields_set:
            raise HTTPException(self.bad_request, "is_approve: Field required")
        edited = reply.edited_output
        return Decision(
            reply.execution_id,
            reply.task_id,
            reply.is_approve,
            reply.human_feedback,
            reply.addresses(),
            outcome=reply.outcome,
            edit=EditedOutput(edited.text, edited.output_sha256) if edited else None,
            lacks_feedback=is_alone and "human_feedback" not in reply.model_fields_set,
            draft_sha256=reply.output_sha256,
        )

    def resumed(self, decision: Decision, kickoff_id: str) -> dict[str, Any]:
        if decision.is_approve is not False or decision.outcome is not None:
            return {"status": "resumed", "message": "Execution resumed successfully"}
        return {"status": "retrying", "message": "Task will be retried with your feedback"}

    def unknown(self) -> tuple[int, dict[str, Any]]:
        return 404, {"detail": "Execution not found"}

    def word(self, state: State) -> str:
        return WORDS[state]

    def status(self, row: Row[Any], crew: Crew, used: Usage | None) -> dict[str, Any]:
        word = WORDS[row.state]
        if word == "completed":
            result = {"output": row.output, "tasks": row.tasks}
            return {"status": word, "result": result, "execution_time": round(row.work_seconds, 3)}
        if word == "error":
            return {"status": word, "error": row.error, "execution_time": round(row.work_seconds, 3)}
        total = max(len(crew.tasks), row.completed_tasks)  # a Flow may run a method more than once
        progress = {"completed_tasks": row.completed_tasks, "total_tasks": total}
        if word == "pending":
            question = question_in(row.gate)
            return {
                "status": word,
                "current_task": question.task_id,
                "task_id": question.key,
                "task_output": question.output,
                "progress": progress,
                **question.asked,
            }
        held = {"held_until": iso(row.held_until)} if row.held_until and row.state == State.QUEUED else {}
        return {"status": word, "current_task": task_now(row, crew), "progress": progress, **held}
