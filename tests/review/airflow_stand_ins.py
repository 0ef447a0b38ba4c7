"""Stand-ins for the parts of Airflow that a task talks to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow.sdk.execution_time.comms import CreateHITLDetailPayload

PENDING = {
    "state": "pending",
    "kickoff_id": "execution-1",
    "execution_id": "execution-1",
    "crew_task_id": "draft_task",
    "output": "Draft 1.",
    "tasks": [],
}


class Store(dict):
    """The task's own store of Airflow 3.3."""

    def set(self, key: str, value: Any, **_: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


@dataclass
class Supervisor:
    """Keeps the first text of a question for good, as Airflow does."""

    asked: list[Any] = field(default_factory=list)

    def send(self, msg: Any) -> Any:
        if not isinstance(msg, CreateHITLDetailPayload):
            return None
        self.asked.append(msg)
        return self.asked[0]
