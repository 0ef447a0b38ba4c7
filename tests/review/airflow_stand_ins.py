"""Stand-ins for the parts of Airflow that a task talks to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk.api.datamodels._generated import HITLDetailResponse
from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, GetHITLDetailResponse

from airflow_crew_provider.compat import version

try:
    from airflow.sdk.exceptions import TaskAwaitingInput
except ImportError:  # before Airflow 3.3 a trigger waits for each answer
    TaskAwaitingInput = TaskDeferred  # type: ignore[assignment, misc]

TaskParked = (TaskAwaitingInput, TaskDeferred)

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
    """Keeps the first text of a question for good, as Airflow does before 3.4; later each attempt has its own form."""

    asked: list[Any] = field(default_factory=list)
    kills: bool = False  # the task, once its question is open
    answer: dict[str, Any] | None = None  # for a triggerer that looks for one

    def send(self, msg: Any) -> Any:
        if isinstance(msg, GetHITLDetailResponse):
            return self._answer()
        if not isinstance(msg, CreateHITLDetailPayload):
            return None
        self.asked.append(msg)
        if self.kills:
            raise KeyboardInterrupt
        return self.asked[-1 if version.has_form_per_attempt() else 0]

    def _answer(self) -> HITLDetailResponse:
        given = {"responded_at": None, "chosen_options": [], **(self.answer or {})}
        return HITLDetailResponse(**{**given, "response_received": self.answer is not None})


def parked(run: Callable[[], Any]) -> dict[str, Any]:
    """Run a task until it waits for a person; return what it keeps meanwhile."""
    with pytest.raises(TaskParked) as waits:
        run()
    return dict(waits.value.kwargs)


def time_left(parked: Any) -> timedelta:
    """Return how long a task that was parked waits for its answer."""
    trigger = getattr(parked, "trigger", None)
    return parked.timeout if trigger is None else trigger.timeout_datetime - datetime.now(UTC)
