"""What a crew answers, in the dialect of the specification and in that of live deployments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from faults.wire import Reply

UNKNOWN_LIVE = {"state": "NOT FOUND", "status": "Task not found or Invalid kickoff id", "result": None}


@dataclass(frozen=True)
class Dialect:
    """The bodies of one dialect, by what they mean."""

    name: str
    running: Any
    completed: Any
    failed: Any
    unknown: Any
    resumed: Any

    def __str__(self) -> str:
        return self.name


SPEC = Dialect(
    name="spec",
    running={
        "status": "running",
        "current_task": "draft_task",
        "progress": {"completed_tasks": 1, "total_tasks": 2},
    },
    completed={
        "status": "completed",
        "result": {
            "output": "the output",
            "tasks": [{"task_id": "draft_task", "output": "a draft", "agent": "Writer", "execution_time": 1.5}],
        },
        "execution_time": 3.25,
    },
    failed={"status": "error", "error": "ValueError: bad input", "execution_time": 1.0},
    unknown=Reply(status=404, body={"detail": "Execution not found"}),
    resumed={"status": "resumed", "message": "Execution resumed"},
)
LIVE = Dialect(
    name="live",
    running={
        "state": "RUNNING",
        "status": "Task is Running",
        "result": None,
        "result_json": None,
        "progress": {"unit": "task", "completed": 1, "total": 2, "remaining": 1, "current": "draft_task"},
    },
    completed={
        "state": "SUCCESS",
        "status": None,
        "result": "the output",
        "result_json": None,
        "usage_metrics": {"total_tokens": 1250},
    },
    failed={"state": "FAILED", "status": "ValueError: bad input", "result": None, "progress": None},
    unknown=UNKNOWN_LIVE,
    resumed={"kickoff_id": "k-2"},
)
DIALECTS = (SPEC, LIVE)
PENDING_SPEC = {"status": "pending", "current_task": "draft_task", "task_id": "draft_task", "task_output": "the draft"}
