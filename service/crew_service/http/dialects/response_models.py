"""The response bodies, with examples; they document the dialects' responses in /docs and /openapi.json."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FILE_ID = "qTfYd6Yk3Zb0mWx1uJ7pN4sR8vC2hL5eG9aK0iO3wXs"
ID = "7f0f3c1e-2b6b-4a57-9d8e-3a1f0f5f6f11"


def shown(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": list(examples)})


class Problem(BaseModel):
    """The reason the request was refused."""

    model_config = shown({"detail": "Missing inputs: topic"})
    detail: str


class BudgetBody(BaseModel):
    """The budget that is used up."""

    who: str = Field(description="`*` for this service, `crew:NAME`, `organization`, or a user.")
    window: Literal["hour", "day", "month"]
    until: str = Field(description="When it begins anew (ISO 8601, in UTC).")
    used: float | None = Field(None, description="Absent if the budget is somebody else's, like the next two.")
    amount: float | None = None
    unit: Literal["USD", "tokens"] | None = None


class OverBudgetProblem(Problem):
    """A budget is used up, so nothing was started or changed; or, without `budget`, too many requests."""

    model_config = shown(
        {
            "detail": "The day's budget of alice is used up until 2026-11-29T00:00:00+00:00 (20.13 USD of 20.00 USD). "
            "Nothing was started.",
            "budget": {
                "who": "alice",
                "window": "day",
                "until": "2026-11-29T00:00:00+00:00",
                "used": 20.13,
                "amount": 20.0,
                "unit": "USD",
            },
        }
    )
    budget: BudgetBody | None = None


class FieldProblem(BaseModel):
    loc: list[str | int]
    msg: str
    type: str


class FieldProblems(BaseModel):
    """The reason the request was refused: a sentence, or a list with an entry for each invalid field."""

    model_config = shown(
        {"detail": "Missing inputs: topic"},
        {"detail": [{"loc": ["body", "executionId"], "msg": "Field required", "type": "missing"}]},
    )
    detail: str | list[FieldProblem]


class Inputs(BaseModel):
    model_config = shown({"inputs": ["topic"], "required": ["topic"], "continues": True})
    inputs: list[str] = Field(description="Names of the inputs that a kickoff may send.")
    required: list[str] = Field(description="Names of the required inputs; often none for a Flow.")
    continues: bool = Field(description="Whether a kickoff may continue an execution that ended with an error.")
    files: list[str] | None = Field(
        None, description="Names of the inputs that take files; if empty, any may. Absent if the crew takes none."
    )


class UploadedFile(BaseModel):
    model_config = shown(
        {
            "url": f"https://crew.example.com/files/{FILE_ID}",
            "field_name": "report",
            "id": FILE_ID,
            "size": 81920,
            "sha256": "0" * 64,
            "content_type": "application/pdf",
        }
    )
    url: str = Field(description="For `input_files` of a kickoff. It cannot be fetched.")
    field_name: str | None = Field(description="As it was sent.")
    id: str
    size: int = Field(description="Bytes.")
    sha256: str
    content_type: str = Field(description="From the file's content.")


class KickedOff(BaseModel):
    model_config = shown({"kickoff_id": ID})
    kickoff_id: str = Field(description="The id to poll.")


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
    """The Flow continues."""

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


class Ready(Health):
    off: list[str] = Field(default_factory=list, description="What this release of CrewAI turns off, and why.")


class ProgressModel(BaseModel):
    completed_tasks: int
    total_tasks: int


class TaskResultModel(BaseModel):
    task_id: str
    output: str
    agent: str = Field(description="Role of the agent that ran the task.")
    execution_time: float = Field(description="Seconds of work.")


class ResultModel(BaseModel):
    output: str = Field(description="The crew's final output.")
    tasks: list[TaskResultModel]


class Running(BaseModel):
    """In progress or queued; a queued execution reports the first task as current, with 0 completed."""

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
    held_until: str | None = Field(
        None, description="If a budget is used up: when the execution may begin (ISO 8601, in UTC). Absent otherwise."
    )


class Ask(BaseModel):
    """A question for a person in the middle of a task. Only `approve` and `run_again` run the tool."""

    kind: Literal["tool", "question", "unknown_outcome"]
    agent: str | None = Field(description="null if a Flow's method asks.")
    tool: str | None = Field(description="null for an agent's question.")
    arguments: dict[str, Any] | None = Field(description="Secrets are shown as `***`. null for an agent's question.")
    number: int = Field(description="Number of the question or draft in the execution, counting from 1.")
    earlier_calls: int = Field(
        0,
        description="Finished calls of the task to tools without a rule. The crew continues in a new process, where "
        "what they kept in memory is lost. Not part of the hashed text.",
    )
    deadline: str | None = Field(
        None, description="If a Flow's method asks: when the service answers with nobody's answer; null for never."
    )
    metadata: dict[str, Any] | None = Field(
        None, description="If a Flow's method asks: what it says about the question."
    )
    cut: bool = Field(False, description="In details: whether long arguments are omitted; see the round's `draft`.")


class Pending(BaseModel):
    """A person must decide: `POST /resume` with this task id."""

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
    question: str | None = Field(None, description="The Flow author's question, or one in the middle of a task.")
    outcomes: list[str] | None = Field(None, description="The choices; empty if a Flow asks for text.")
    ask: Ask | None = Field(None, description="For a question in the middle of a task.")


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
    execution_time: float = Field(description="Seconds of run time, excluding waits for a person.")


class Failed(BaseModel):
    """The crew failed, exceeded a limit, or was stopped."""

    model_config = shown({"status": "error", "error": "ValueError: bad input", "execution_time": 1.2})
    status: Literal["error"]
    error: str
    execution_time: float


class Listed(BaseModel):
    """One execution in a list, with the specification's states in both dialects; poll it to get the result."""

    kickoff_id: str = Field(description="The id to poll.")
    execution_id: str = Field(
        description="The id for a resume; differs from `kickoff_id` after a resume in the live dialect."
    )
    status: Literal["running", "pending", "completed", "error"]
    current_task: str | None = Field(description="The task in progress.")
    task_id: str | None = Field(description="With `pending`: the task to decide on.")
    progress: ProgressModel
    execution_time: float = Field(description="Seconds of work so far.")
    error: str | None
    created_at: str = Field(description="ISO 8601, in UTC.")
    updated_at: str


class Listing(BaseModel):
    """Executions, newest first."""

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


class StepDetails(BaseModel):
    """A model or tool call; recorded only if a journal is kept."""

    number: int = Field(description="Counts from 1 in each execution.")
    kind: Literal["model", "tool"]
    name: str = Field(description="Name of the tool, as shown to the model, or of the model.")
    agent: str = Field(description="The agent's role.")
    state: Literal["running", "done", "failed", "unknown"] = Field(
        description="`unknown`: the process exited before the call ended, or the call failed but may run only once."
    )
    started_at: str
    seconds: float | None = Field(description="null until the call ends.")
    usage: dict[str, Any] | None = Field(description="For a model: tokens used, if known.")
    arguments: str | None = Field(
        description="The first 2,048 bytes of JSON text, without secrets; for a model, the newest message."
    )
    result: str | None = Field(description="Likewise; for a failed step, the error.")
    from_journal: bool = Field(description="Whether the result was reused when the task restarted.")
    cut: bool = Field(description="Whether `arguments` or `result` was truncated.")


class ListedStep(StepDetails):
    task_id: str = Field(description="Empty if the step is not part of a task.")


A_STEP = {
    "number": 2,
    "kind": "tool",
    "name": "search_web",
    "agent": "Writer",
    "state": "done",
    "started_at": "2026-11-20T12:00:01+00:00",
    "seconds": 0.412,
    "usage": None,
    "arguments": '{"query": "AI"}',
    "result": '"Three articles on AI"',
    "from_journal": False,
    "cut": False,
}


class UsageRow(BaseModel):
    """Sums; `day`, `crew`, `owner` and `model` are present as requested."""

    day: str | None = Field(None, description="In UTC.")
    crew: str | None = Field(None, description="Empty for a crew that is served alone.")
    owner: str | None = Field(None, description="The name of a user token, or `organization`.")
    model: str | None = Field(None, description="Empty if unknown.")
    executions: int = Field(description="Executions whose first tokens these are.")
    total_tokens: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = Field(description="null if some of it has no known price.")


class BudgetStanding(BaseModel):
    who: str
    amount: float
    unit: Literal["USD", "tokens"]
    window: Literal["hour", "day", "month"]
    used: float
    since: str
    until: str


class UsageModel(BaseModel):
    """What was used, and what of the budgets."""

    model_config = shown(
        {
            "rows": [
                {
                    "day": "2026-11-28",
                    "executions": 12,
                    "total_tokens": 48210,
                    "prompt_tokens": 40110,
                    "completion_tokens": 8100,
                    "cost_usd": 0.0109,
                }
            ],
            "budgets": [
                {
                    "who": "*",
                    "amount": 20.0,
                    "unit": "USD",
                    "window": "day",
                    "used": 0.0109,
                    "since": "2026-11-28T00:00:00+00:00",
                    "until": "2026-11-29T00:00:00+00:00",
                }
            ],
        }
    )
    rows: list[UsageRow]
    budgets: list[BudgetStanding] = Field(description="A user sees only their own.")


class Steps(BaseModel):
    """All steps of an execution, one page at a time."""

    model_config = shown({"steps": [{"task_id": "draft_task", **A_STEP}], "next": 2})
    steps: list[ListedStep]
    next: int | None = Field(description="The `after` for the next page; null if there is none.")


A_FILE = {
    "name": "report.md",
    "version": 1,
    "size": 2113,
    "sha256": "0" * 64,
    "content_type": "text/plain",
    "task_id": "draft_task",
    "created_at": "2026-11-20T12:00:02+00:00",
    "direction": "out",
    "round": None,
    "state": "final",
    "view": f"/file?id={ID}&name=report.md&version=1&direction=out",
}


class ExecutionFile(BaseModel):
    name: str = Field(description="A relative path; of a file in, the input's name.")
    version: int = Field(description="Counts up with each content; the five newest versions are kept.")
    size: int
    sha256: str
    content_type: str
    task_id: str | None
    created_at: str
    direction: Literal["in", "out"]
    round: int | None = Field(description="The number of the question with which a person was shown it.")
    state: Literal["draft", "final"] = Field(description="`draft` until its task is approved.")
    view: str = Field(description="The path at which a signed-in browser downloads it.")


class ExecutionFiles(BaseModel):
    """All files of an execution, those that its crew has written first, newest first."""

    model_config = shown({"files": [A_FILE]})
    files: list[ExecutionFile]


class TaskDetails(BaseModel):
    task_id: str
    name: str
    agent: str
    state: Literal["not_started", "running", "pending", "completed", "error"]
    started_at: str | None
    seconds: float | None = Field(description="Seconds of work, for a finished task.")
    output: str | None
    usage: dict[str, Any] | None = Field(description="null if not counted.")
    steps: list[StepDetails] = Field(description="The task's steps, from among the execution's newest 50.")
    cut: bool = Field(False, description="Whether any text in this object was truncated.")


class RoundDetails(BaseModel):
    """A question for a person, and the decision."""

    number: int = Field(description="Counts from 1 in each execution.")
    task_id: str
    asked_at: str
    question: str | None = Field(description="The question of a Flow, or one in the middle of a task.")
    outcomes: list[str] | None = Field(description="The choices, for a Flow or in the middle of a task.")
    draft: str | None
    output_sha256: str | None = Field(description="Hash of the whole draft.")
    decided_at: str | None
    is_approve: bool | None
    outcome: str | None
    human_feedback: str | None
    edited: bool | None = Field(description="Whether the approval replaced the draft; the new text is the output.")
    ask: Ask | None = Field(description="For a question in the middle of a task.")
    by: str | None = Field(description="`organization`, `user:<name>`, or the `source` of an answer to a Flow.")
    cut: bool = Field(False, description="Whether any text in this object was truncated.")


class Details(BaseModel):
    """At most 1 MiB: long texts are truncated, and data that does not fit is omitted, oldest first."""

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
            "held_until": None,
            "usage": {"total_tokens": 500, "prompt_tokens": 400, "completion_tokens": 100},
            "continued_from": None,
            "chain_usage": None,
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
                    "steps": [A_STEP],
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
                    "ask": None,
                    "by": None,
                }
            ],
            "files": [A_FILE],
            "view": f"/view?id={ID}",
            "left_out": [],
        }
    )
    execution_id: str
    kickoff_ids: list[str] = Field(description="The ids used to poll it, the current one last.")
    crew: str = Field(description="Empty if a single crew is served at the root.")
    dialect: Literal["spec", "live"]
    state: Literal["running", "pending", "completed", "error"]
    inputs: dict[str, Any] | None
    meta: dict[str, Any] | None
    created_at: str = Field(description="ISO 8601, in UTC, like all times here.")
    started_at: str | None
    ended_at: str | None
    work_seconds: float = Field(description="Run time of finished work, excluding waits for a person.")
    held_until: str | None = Field(description="If a budget holds it in the queue: when it may begin.")
    usage: dict[str, Any] | None
    continued_from: str | None = Field(description="The id of the failed execution that this one continues.")
    chain_usage: dict[str, Any] | None = Field(
        description="Usage including the executions that this one continues; null if it continues none."
    )
    error: str | None
    output: str | None
    output_json: dict[str, Any] | None
    tasks: list[TaskDetails]
    rounds: list[RoundDetails]
    files: list[ExecutionFile] = Field(description="The newest 50.")
    view: str = Field(description="Path of its page, relative to the crew's base URL.")
    left_out: list[str] = Field(description="Names of the incomplete fields.")
    cut: bool = Field(False, description="Whether `output` or `error` was truncated.")


class StatusOfMany(BaseModel):
    """The response that a separate request would have returned."""

    code: int
    body: dict[str, Any]
    usage: dict[str, Any] | None = Field(None, description="The value of the `Crew-Usage` header.")


class Statuses(BaseModel):
    """Statuses by id; null for a status that is too long for a combined response."""

    model_config = shown({"statuses": {ID: {"code": 200, "body": {"status": "running", "current_task": "draft_task"}}}})
    statuses: dict[str, StatusOfMany | None]
