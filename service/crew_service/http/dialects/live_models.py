"""The response bodies that only live deployments use, with examples."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from crew_service.http.dialects.response_models import shown


class LiveProgress(BaseModel):
    unit: Literal["task", "step"]
    completed: int
    total: int | None = Field(description="null for a Flow: the number of methods that will run is unknown.")
    remaining: int | None
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
    """`NOT FOUND` is also the state of an execution waiting for a person, and of an id that a resume replaced."""

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
    state: Literal["PENDING", "STARTED", "RUNNING", "SUCCESS", "FAILED", "REVOKED", "PAUSED", "NOT FOUND"]
    flow_id: str | None = Field(None, description="With `PAUSED`: the id for `POST /resume_feedback`.")
    status: str | None = Field(description="A human-readable sentence or, for a failed execution, the error.")
    result: str | None
    result_json: dict[str, Any] | None = Field(description="The result, if it is a JSON object.")
    progress: LiveProgress | None
    last_executed_task: LastTask | None
    last_step: LastStep | None
    usage_metrics: dict[str, Any] | None = Field(None, description="Tokens used; only with `SUCCESS`.")
