"""The shapes of the specification."""

from __future__ import annotations

from typing import Any, ClassVar

from fastapi import HTTPException
from pydantic import ValidationError
from sqlalchemy import Row

from airflow_crew_provider.service.crews import Crew
from airflow_crew_provider.service.desk import AlreadyOver, Decision, NotWaiting, UnknownExecution, UnknownTask
from airflow_crew_provider.service.states import State

from . import answers
from .base import ONCE, Dialect, task_now
from .requests import ResumeBody

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
    resume_body = ResumeBody
    refusals: ClassVar = {
        UnknownExecution: (404, "Execution not found"),
        UnknownTask: (404, "Task not found in this execution"),
        NotWaiting: (400, "The execution is not pending human feedback for this task"),
        AlreadyOver: (400, "Cannot stop execution. Current state: {state}"),
    }
    columns = ("work_seconds", "completed_tasks", "current_task", "gate", "tasks", "output", "error")
    status_answer = answers.Running | answers.Pending | answers.Completed | answers.Failed
    resume_answer = answers.Resumed
    problem = answers.Problem
    look_problems: ClassVar = {404: "The id is not known."}
    resume_problems: ClassVar = {404: "The execution, or a task of that id in it, is not known."} | ONCE

    def malformed(self, message: str) -> HTTPException:
        return HTTPException(400, message)

    def refuse(self, error: ValidationError) -> HTTPException:
        told = (f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors())
        return HTTPException(400, "; ".join(told))

    def decision(self, body: dict[str, Any]) -> Decision:
        said = self.read(ResumeBody, body)
        return Decision(said.execution_id, said.task_id, said.is_approve, said.human_feedback, said.webhooks())

    def resumed(self, decision: Decision, kickoff_id: str) -> dict[str, Any]:
        if decision.is_approve:
            return {"status": "resumed", "message": "Execution resumed successfully"}
        return {"status": "retrying", "message": "Task will be retried with your feedback"}

    def unknown(self) -> tuple[int, dict[str, Any]]:
        return 404, {"detail": "Execution not found"}

    def word(self, state: State) -> str:
        return WORDS[state]

    def status(self, row: Row[Any], crew: Crew) -> dict[str, Any]:
        word = WORDS[row.state]
        if word == "completed":
            result = {"output": row.output, "tasks": row.tasks}
            return {"status": word, "result": result, "execution_time": round(row.work_seconds, 3)}
        if word == "error":
            return {"status": word, "error": row.error, "execution_time": round(row.work_seconds, 3)}
        progress = {"completed_tasks": row.completed_tasks, "total_tasks": len(crew.tasks)}
        if word == "pending":
            task = row.gate["task_id"]
            return {
                "status": word,
                "current_task": task,
                "task_id": row.gate["key"],
                "task_output": row.gate["output"],
                "progress": progress,
            }
        return {"status": word, "current_task": task_now(row, crew), "progress": progress}
