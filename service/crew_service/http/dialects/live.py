"""The response shapes of live deployments (docs/api.md), except that an invalid body never results in a 500."""

from __future__ import annotations

from typing import Any, ClassVar

from fastapi import HTTPException
from pydantic import ValidationError
from sqlalchemy.engine import Row

from crew_service.engine.approval import reads_like_approval
from crew_service.engine.continuing import CannotContinue
from crew_service.engine.crew import Crew
from crew_service.engine.decisions import AlreadyOver, BadAnswer, Decision, NotWaiting, UnknownExecution, UnknownTask
from crew_service.engine.files import UnknownFile
from crew_service.engine.usage import Usage
from crew_service.http.dialects import live_models, response_models
from crew_service.http.dialects.base import ONCE, USED, Dialect, problems, task_now
from crew_service.http.dialects.request_models import LiveResumeBody
from crew_service.storage.states import State
from crew_service.times import iso

WORDS = {
    State.QUEUED: "PENDING",
    State.RUNNING: "RUNNING",
    State.WAITING: "NOT FOUND",
    State.COMPLETED: "SUCCESS",
    State.FAILED: "FAILED",
    State.STOPPED: "REVOKED",
}
SENTENCES = {
    "PENDING": "Task is pending",
    "STARTED": "Task has started",
    "RUNNING": "Task is Running",
    "NOT FOUND": "Task not found or Invalid kickoff id",
    "SUCCESS": None,
    "PAUSED": "Flow is waiting for human feedback",
}


class LiveDialect(Dialect):
    name = "live"
    fresh_ids = True
    queue_delay = 0.25
    bad_request = 422
    without_header = "Not authenticated"
    resume_body = LiveResumeBody
    flow_resume_body = LiveResumeBody
    refusals: ClassVar = {
        UnknownExecution: (404, "Execution not found"),
        UnknownTask: (404, "Task not found"),
        NotWaiting: (400, "The execution is not waiting for feedback with this task id"),
        CannotContinue: (422, "{reason}"),
        UnknownFile: (404, "{reason}"),
        AlreadyOver: (400, "Cannot stop execution. Current state: {state}"),
        BadAnswer: (422, "{reason}"),
    }
    columns = (
        *("created_at", "updated_at", "ended_at", "meta", "completed_tasks", "current_task", "current_agent"),
        *("last_task", "last_step", "output", "output_json", "error", "held_until", *USED),
    )
    status_answer = live_models.LiveStatus
    resume_answer = response_models.KickedOff
    problem = response_models.FieldProblems
    status_problems: ClassVar = {}
    resume_problems = ONCE

    def malformed(self, message: str) -> HTTPException:
        return HTTPException(self.bad_request, [{"loc": ["body"], "msg": message, "type": "json_invalid"}])

    def refuse(self, error: ValidationError) -> HTTPException:
        return HTTPException(
            self.bad_request, [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems(error)]
        )

    def decision(self, body: dict[str, Any], crew: Crew) -> Decision:
        """Decide by the text alone, like live deployments; a Flow interprets its text itself."""
        reply = self.read(LiveResumeBody, body)
        feedback = reply.humanFeedback or ""
        approves = None if crew.kind == "flow" else reads_like_approval(feedback)
        return Decision(reply.executionId, reply.taskId, approves, feedback, reply.addresses(), outcome=reply.outcome)

    def resumed(self, decision: Decision, kickoff_id: str) -> dict[str, Any]:
        return {"kickoff_id": kickoff_id}

    def unknown(self) -> tuple[int, dict[str, Any]]:
        return 200, _record("NOT FOUND")

    def word(self, state: State) -> str:
        return WORDS[state]

    def status(self, row: Row[Any], crew: Crew, used: Usage | None) -> dict[str, Any]:
        match row.state:
            case State.RUNNING:
                word = "RUNNING" if row.current_task is not None else "STARTED"
                return _record(
                    word,
                    progress=_progress(row, crew),
                    last_executed_task=_last_task(row),
                    last_step=row.last_step,
                )
            case State.COMPLETED:
                return _record(
                    "SUCCESS",
                    result=row.output,
                    result_json=row.output_json,
                    progress=_progress(row, crew),
                    last_executed_task=_last_task(row),
                    last_step=row.last_step,
                    usage_metrics=used,
                )
            case State.FAILED | State.STOPPED:
                return _record(WORDS[row.state], status=row.error)
            case State.WAITING if crew.kind == "flow":
                return _record(
                    "PAUSED", flow_id=row.id, progress=_progress(row, crew), last_executed_task=_last_task(row)
                )
            case State.QUEUED if row.held_until:
                return _record(WORDS[row.state], status=f"Held by a budget until {iso(row.held_until)}")
            case _:
                return _record(WORDS[row.state])


def _record(state: str, *, status: str | None = None, **values: Any) -> dict[str, Any]:
    return {
        "state": state,
        "status": status or SENTENCES.get(state),
        "result": None,
        "result_json": None,
        "progress": None,
        "last_executed_task": None,
        "last_step": None,
        **values,
    }


def _progress(row: Row[Any], crew: Crew) -> dict[str, Any]:
    total = len(crew.tasks) if crew.kind == "crew" else None
    over = row.state == State.COMPLETED
    return {
        "unit": "task" if crew.kind == "crew" else "step",
        "completed": row.completed_tasks,
        "total": total,
        "remaining": None if total is None else total - row.completed_tasks,
        "current": None if over else task_now(row, crew),
        "current_agent": row.current_agent,
        "started_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
        "duration_seconds": round((row.ended_at or row.updated_at) - row.created_at, 3),
    }


def _last_task(row: Any) -> dict[str, Any] | None:
    if row.last_task is None:
        return None
    task = {name: row.last_task.get(name) for name in ("name", "description", "output", "agent")}
    return {**task, "kickoff_id": row.kickoff_id, "meta": row.meta or {}}
