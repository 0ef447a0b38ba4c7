"""A crew in place of a real one: tests override what matters to them. A new member of the protocol is added here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from crew_service.engine.crew import Cancellation, Job, Outcome, Report, TaskInfo, TaskOutput
from crew_service.engine.file_inputs import FileInputs
from crew_service.engine.tool_rules import ToolRule


class StandInCrew:
    kind: Literal["crew", "flow"] = "crew"
    isolation: Literal["inline", "process"] = "inline"
    inputs: Sequence[str] = ("topic",)
    required: Sequence[str] = ()
    file_inputs = FileInputs({})
    tasks: Sequence[TaskInfo] = (TaskInfo("only_task", "Agent"),)
    tools: Sequence[str] = ()
    knows_all_tools = True
    rules: tuple[ToolRule, ...] = ()
    secrets: Sequence[str] = ()
    off: Sequence[str] = ()
    asks: str | None = None

    def has_tool(self, rule: ToolRule) -> bool:
        return False

    def lost(self, finished: Sequence[TaskOutput], state: dict[str, Any]) -> str | None:
        return None

    def run(self, job: Job, report: Report) -> Outcome:
        raise NotImplementedError

    def forget_memory(self, before: float, stopping: Cancellation) -> None:
        pass

    def edit_problem(
        self,
        task_id: str,
        state: dict[str, Any],
        text: str,
        *,
        owner: str | None,
        stopping: Cancellation,
        report: Report,
    ) -> str | None:
        return None
