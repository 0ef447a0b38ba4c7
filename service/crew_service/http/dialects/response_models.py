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
    model_config = shown({"inputs": ["topic"], "required": ["topic"]})
    inputs: list[str] = Field(description="Names of the inputs that a kickoff may give.")
    required: list[str] = Field(description="Those that it has to give; of a Flow often none.")


class KickedOff(BaseModel):
    model_config = shown({"kickoff_id": ID})
    kickoff_id: str = Field(description="What to poll.")


class ResumedModel(BaseModel):
    """The id to poll stays the same."""

    model_config = shown({"status": "resumed", "message": "Execution resumed successfully"})
    status: Literal["resumed", "retrying"] = Field(description="`retrying`: the task runs again with the feedback.")
    message: str


class AnsweredRequest(BaseModel):
    id: str | None
    status: Literal["responded"]
    flow_id: str
    method_name: str
    responded_by: str
    responded_at: str


class Accepted(BaseModel):
    """The Flow goes on."""

    model_config = shown(
        {
            "status": "accepted",
            "request": {
                "id": ID,
                "status": "responded",
                "flow_id": ID,
                "method_name": "check_briefing",
                "responded_by": "airflow",
                "responded_at": "2026-11-20T09:00:00+00:00",
            },
        }
    )
    status: Literal["accepted"]
    request: AnsweredRequest


class Stopped(BaseModel):
    model_config = shown({"status": "stopped", "kickoffId": ID})
    status: Literal["stopped"]
    kickoffId: str


class Health(BaseModel):
    model_config = shown({"status": "ok"})
    status: Literal["ok"]


class ProgressModel(BaseModel):
    completed_tasks: int
    total_tasks: int


class TaskResultModel(BaseModel):
    task_id: str
    output: str
    agent: str = Field(description="Role of the agent that ran the task.")
    execution_time: float = Field(description="Seconds of work.")


class ResultModel(BaseModel):
    output: str = Field(description="The final output of the crew.")
    tasks: list[TaskResultModel]


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
    progress: ProgressModel


class Pending(BaseModel):
    """A person has to decide: `POST /resume` with this task id."""

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
    progress: ProgressModel
    question: str | None = Field(None, description="Of a Flow: what its author asks.")
    outcomes: list[str] | None = Field(
        None, description="Of a Flow: what may be chosen; empty where a text is asked for."
    )


class CompletedStatus(BaseModel):
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
    result: ResultModel
    execution_time: float = Field(description="Seconds of work, without the time waited for a person.")


class Failed(BaseModel):
    """The crew failed, took too long, or was stopped."""

    model_config = shown({"status": "error", "error": "ValueError: bad input", "execution_time": 1.2})
    status: Literal["error"]
    error: str
    execution_time: float


class Listed(BaseModel):
    """One execution of a list, in the words of the specification in both dialects; its status has the result."""

    kickoff_id: str = Field(description="What to poll.")
    execution_id: str = Field(description="What a resume names; differs after a resume in the live dialect.")
    status: Literal["running", "pending", "completed", "error"]
    current_task: str | None = Field(description="The task in progress.")
    task_id: str | None = Field(description="With `pending`: the task that a resume decides on.")
    progress: ProgressModel
    execution_time: float = Field(description="Seconds of work so far.")
    error: str | None
    created_at: str = Field(description="ISO 8601, in UTC.")
    updated_at: str


class Listing(BaseModel):
    """The newest execution first."""

    model_config = shown(
        {
            "executions": [
                {
                    "kickoff_id": ID,
                    "execution_id": ID,
                    "status": "pending",
                    "current_task": "draft_task",
                    "task_id": "draft_task",
                    "progress": {"completed_tasks": 1, "total_tasks": 3},
                    "execution_time": 2.1,
                    "error": None,
                    "created_at": "2026-11-20T12:00:00+00:00",
                    "updated_at": "2026-11-20T12:00:03+00:00",
                }
            ]
        }
    )
    executions: list[Listed]


class TaskDetails(BaseModel):
    task_id: str
    name: str
    agent: str
    state: Literal["not_started", "running", "pending", "completed", "error"]
    started_at: str | None
    seconds: float | None = Field(description="Seconds of work of a finished task.")
    output: str | None
    usage: dict[str, Any] | None = Field(description="null where nobody has counted.")
    cut: bool = Field(False, description="A text of this object is longer.")


class RoundDetails(BaseModel):
    """What a person was asked, and decided."""

    number: int = Field(description="Counts from 1 in each execution.")
    task_id: str
    asked_at: str
    question: str | None = Field(description="Of a Flow.")
    outcomes: list[str] | None = Field(description="Of a Flow: what may be chosen.")
    draft: str | None
    output_sha256: str | None = Field(description="Hash of the whole draft.")
    decided_at: str | None
    is_approve: bool | None
    outcome: str | None
    human_feedback: str | None
    edited: bool | None = Field(description="Whether the approval brought a text of its own, now the task's output.")
    by: str | None = Field(description="`organization`, `user:<name>`, or the `source` of an answer to a Flow.")
    cut: bool = Field(False, description="A text of this object is longer.")


class Details(BaseModel):
    """At most 1 MiB. Texts are cut, and what does not fit is left out, the oldest first."""

    model_config = shown(
        {
            "execution_id": ID,
            "kickoff_ids": [ID],
            "crew": "report",
            "dialect": "spec",
            "state": "pending",
            "inputs": {"topic": "AI"},
            "meta": None,
            "created_at": "2026-11-20T12:00:00+00:00",
            "started_at": "2026-11-20T12:00:00.200000+00:00",
            "ended_at": None,
            "work_seconds": 2.1,
            "usage": {"total_tokens": 500, "prompt_tokens": 400, "completion_tokens": 100},
            "error": None,
            "output": None,
            "output_json": None,
            "tasks": [
                {
                    "task_id": "draft_task",
                    "name": "draft_task",
                    "agent": "Writer",
                    "state": "pending",
                    "started_at": "2026-11-20T12:00:00.300000+00:00",
                    "seconds": None,
                    "output": None,
                    "usage": {"total_tokens": 500, "prompt_tokens": 400, "completion_tokens": 100},
                }
            ],
            "rounds": [
                {
                    "number": 1,
                    "task_id": "draft_task",
                    "asked_at": "2026-11-20T12:00:03+00:00",
                    "question": None,
                    "outcomes": None,
                    "draft": "Draft 1 on AI",
                    "output_sha256": "0" * 64,
                    "decided_at": None,
                    "is_approve": None,
                    "outcome": None,
                    "human_feedback": None,
                    "edited": None,
                    "by": None,
                }
            ],
            "view": f"/view?id={ID}",
            "left_out": [],
        }
    )
    execution_id: str
    kickoff_ids: list[str] = Field(description="Under which it was polled, the present one last.")
    crew: str = Field(description="Empty where one crew is served, at the root.")
    dialect: Literal["spec", "live"]
    state: Literal["running", "pending", "completed", "error"]
    inputs: dict[str, Any] | None
    meta: dict[str, Any] | None
    created_at: str = Field(description="ISO 8601, in UTC, as every time here.")
    started_at: str | None
    ended_at: str | None
    work_seconds: float = Field(description="Of what has finished; the time waited for a person does not count.")
    usage: dict[str, Any] | None
    error: str | None
    output: str | None
    output_json: dict[str, Any] | None
    tasks: list[TaskDetails]
    rounds: list[RoundDetails]
    view: str = Field(description="Path of its page, below the crew's base URL.")
    left_out: list[str] = Field(description="Names of the fields that lack something.")
    cut: bool = Field(False, description="`output` or `error` is longer.")


class StatusOfMany(BaseModel):
    """What a request of its own would have been answered."""

    code: int
    body: dict[str, Any]
    usage: dict[str, Any] | None = Field(None, description="What the header `Crew-Usage` would have had.")


class Statuses(BaseModel):
    """By id; null where a status is too long for a common answer."""

    model_config = shown({"statuses": {ID: {"code": 200, "body": {"status": "running", "current_task": "draft_task"}}}})
    statuses: dict[str, StatusOfMany | None]
