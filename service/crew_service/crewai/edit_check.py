"""Checks an edited answer in a process of its own, without running any tool that has a rule.

A guardrail may call tools. During a check, no call is recorded and nobody is asked, so a rule could not be followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from crew_service.crewai import description, loading, task_outputs
from crew_service.crewai.ask_person import AskPerson
from crew_service.crewai.description import named_tasks
from crew_service.crewai.errors import Interrupted
from crew_service.crewai.internals import tool_calls
from crew_service.engine.tool_rules import REPEAT, ToolRule, rule_of


class NotRun(Interrupted):
    """A tool with a rule was not run."""


class EditCheck(tool_calls.NoRecorder):
    def __init__(self, rules: Iterable[ToolRule]) -> None:
        self._rules = tuple(rules)
        self._refusal: str | None = None

    def of_tool(self, tool: Any, *call: Any) -> None:
        names = tool_calls.names_of(tool.name)
        if isinstance(tool, AskPerson) or rule_of(self._rules, names) != REPEAT:
            self._refusal = (
                f"the guardrail of its task calls the tool {names[-1]}, which may run only within the execution, where "
                "its calls are recorded and approved. Approve the draft unchanged, or request a revision"
            )
            raise NotRun(self._refusal)

    def problem(self, served: loading.Served, task_id: str, state: dict[str, Any], text: str) -> str | None:
        """Return why `text` cannot replace the waiting answer, worded as the end of a sentence; None if it can."""
        with suppress(NotRun):
            reason = _problem(served, task_id, state, text)
        return self._refusal or reason


def _problem(served: loading.Served, task_id: str, state: dict[str, Any], text: str) -> str | None:
    if "tool" in state:
        return description.arguments_problem(served, state, text)
    task = named_tasks(loading.tasks_of(served)).get(task_id)
    if task is None or "task" not in state:
        return "the crew has changed and no longer has this task"
    return task_outputs.edit_problem(task, state["task"], text)
