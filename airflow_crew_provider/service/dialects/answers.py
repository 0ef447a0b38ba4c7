"""The response bodies, with their examples; they describe what the dialects build, for /docs and /openapi.json."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ID = "7f0f3c1e-2b6b-4a57-9d8e-3a1f0f5f6f11"


def shown(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": list(examples)})


class Problem(BaseModel):
    """Why the request was refused."""

    model_config = shown({"detail": "Missing inputs: topic"})
    detail: str


class FieldProblem(BaseModel):
    loc: list[str | int]
    msg: str
    type: str


class FieldProblems(BaseModel):
    """Why the request was refused: a sentence, or a list with an entry for each wrong field."""

    model_config = shown(
        {"detail": "Missing inputs: topic"},
        {"detail": [{"loc": ["body", "executionId"], "msg": "Field required", "type": "missing"}]},
    )
    detail: str | list[FieldProblem]


class Inputs(BaseModel):
    model_config = shown({"inputs": ["topic"]})
    inputs: list[str] = Field(description="Names that a kickoff has to give.")


class KickedOff(BaseModel):
    model_config = shown({"kickoff_id": ID})
    kickoff_id: str = Field(description="What to poll.")


class Resumed(BaseModel):
    """The id to poll stays the same."""

    model_config = shown({"status": "resumed", "message": "Execution resumed successfully"})
    status: Literal["resumed", "retrying"] = Field(description="`retrying`: the task runs again with the feedback.")
    message: str


class Stopped(BaseModel):
    model_config = shown({"status": "stopped", "kickoffId": ID})
    status: Literal["stopped"]
    kickoffId: str


class Health(BaseModel):
    model_config = shown({"status": "ok"})
    status: Literal["ok"]


class Progress(BaseModel):
    completed_tasks: int
    total_tasks: int


class TaskResult(BaseModel):
    task_id: str
    output: str
    agent: str = Field(description="Role of the agent that ran the task.")
    execution_time: float = Field(description="Seconds of work.")


class Result(BaseModel):
    output: str = Field(description="The crew's answer.")
    tasks: list[TaskResult]


class Running(BaseModel):
    """In progress, or queued: then the first task with 0 completed."""

    model_config = shown(
        {
            "status": "running",
            "current_task": "research_task",
            "progress": {"completed_tasks": 0, "total_tasks": 3},
        }
    )
    status: Literal["running"]
    current_task: str
    progress: Progress


class Pending(BaseModel):
    """A person is to decide: `POST /resume` with this task id."""

    model_config = shown(
        {
            "status": "pending",
            "current_task": "draft_task",
            "task_id": "draft_task",
            "task_output": "Draft 1 on AI",
            "progress": {"completed_tasks": 1, "total_tasks": 3},
        }
    )
    status: Literal["pending"]
    current_task: str
    task_id: str
    task_output: str = Field(description="The text to review.")
    progress: Progress


class Completed(BaseModel):
    model_config = shown(
        {
            "status": "completed",
            "result": {
                "output": "Published: an article on AI.",
                "tasks": [
                    {
                        "task_id": "research_task",
                        "output": "Notes on AI",
                        "agent": "Researcher",
                        "execution_time": 1.0,
                    }
                ],
            },
            "execution_time": 3.1,
        }
    )
    status: Literal["completed"]
    result: Result
    execution_time: float = Field(description="Seconds of work, without the time waited for a person.")


class Failed(BaseModel):
    """The crew failed, took too long, or was stopped."""

    model_config = shown({"status": "error", "error": "ValueError: bad input", "execution_time": 1.2})
    status: Literal["error"]
    error: str
    execution_time: float


class LiveProgress(BaseModel):
    unit: Literal["task"]
    completed: int
    total: int
    remaining: int
    current: str | None
    current_agent: str | None
    started_at: str
    updated_at: str
    duration_seconds: float


class LastTask(BaseModel):
    name: str | None
    description: str | None
    output: str | None
    agent: str | None
    kickoff_id: str
    meta: dict[str, Any]


class LastStep(BaseModel):
    prompt: str
    thought: str
    tool: str
    tool_input: str
    result: str


class LiveStatus(BaseModel):
    """`NOT FOUND` is also what an execution reads that waits for a person, and an id that a resume replaced."""

    model_config = shown(
        {
            "state": "SUCCESS",
            "status": None,
            "result": "Published: an article on AI.",
            "result_json": None,
            "progress": None,
            "last_executed_task": None,
            "last_step": None,
            "usage_metrics": {"total_tokens": 0, "prompt_tokens": 0, "completion_tokens": 0},
        },
        {
            "state": "NOT FOUND",
            "status": "Task not found or Invalid kickoff id",
            "result": None,
            "result_json": None,
            "progress": None,
            "last_executed_task": None,
            "last_step": None,
        },
    )
    state: Literal["PENDING", "STARTED", "RUNNING", "SUCCESS", "FAILED", "REVOKED", "NOT FOUND"]
    status: str | None = Field(description="A sentence for people; the error of a failed execution.")
    result: str | None
    result_json: dict[str, Any] | None = Field(description="The result, where it is a JSON object.")
    progress: LiveProgress | None
    last_executed_task: LastTask | None
    last_step: LastStep | None
    usage_metrics: dict[str, Any] | None = Field(None, description="Tokens used; with `SUCCESS` only.")
