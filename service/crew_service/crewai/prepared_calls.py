"""Calls of tools with the rule `prepare`, as stored for the processes after the one that made them.

While a task runs, the call stands beside its answer in the journal. Once the task has ended, its calls are part of its
output. A task that has ended, or an earlier round of one that was sent back, makes none of its calls again, so they are
made on its behalf.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from crew_service.crewai import codec, points
from crew_service.crewai.coroutines import awaited
from crew_service.crewai.internals import tool_calls

Tools = Iterable[tuple[str, Any]]  # with the role of the agent that has the tool


@dataclass(frozen=True)
class PreparedCall:
    """
    :param task: the task that made it
    :param arguments: encoded; None if they cannot be stored
    """

    task: str
    role: str
    name: str
    method: str = ""
    arguments: str | None = None
    has_raised: bool = False

    def tool(self, tools: Tools) -> Any:
        """Return the tool, of its agent or, if only one has that name, of another; None if there is none."""
        named = [(role, tool) for role, tool in tools if tool_calls.tool_name(tool) == self.name]
        candidates = {id(tool): tool for role, tool in named if role == self.role} or {
            id(tool): tool for _, tool in named
        }
        return next(iter(candidates.values())) if len(candidates) == 1 and self.arguments is not None else None

    def make(self, tool: Any) -> None:
        assert self.arguments is not None
        args, kwargs = codec.decoded(self.arguments)
        answer = getattr(tool, self.method)(*args, **kwargs)
        if inspect.iscoroutine(answer):
            awaited(answer)

    @property
    def shown(self) -> str:
        """Return the arguments by name, as shown to people."""
        return json.dumps(codec.shown(codec.decoded(self.arguments)[1])) if self.arguments else ""


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Encode a call's arguments; return None if they cannot be stored."""
    try:
        return codec.encoded([args, kwargs])
    except codec.NotStorable:
        return None


def beside(answer: str, call: PreparedCall) -> str:
    """Return the answer of a call together with the call, for the journal."""
    return json.dumps({"call": [call.role, call.name, call.method, call.arguments], "answer": answer})


def answer_in(recorded: str) -> str:
    """Return the answer in a journal's entry."""
    return str(_of(recorded).get("answer", recorded))


def call_in(recorded: str, task: str, name: str) -> PreparedCall:
    """Return the call in a journal's entry; an earlier release stored none."""
    fields = _of(recorded)
    role, known, method, packed = fields.get("call", ("", name, "", None))
    has_raised = "raised" in _of(fields.get("answer", recorded))
    return PreparedCall(task, role, known, method, packed, has_raised)


def _of(text: str) -> dict[str, Any]:
    value = json.loads(text)
    return value if isinstance(value, dict) else {}


def with_calls(output: Any, calls: Iterable[PreparedCall]) -> Any:
    """Return a task's output with its calls."""
    stored = [[each.role, each.name, each.method, each.arguments, each.has_raised] for each in calls]
    return points.with_more(output, points.PREPARED, stored)


def of_finished(outputs: Iterable[Any]) -> Iterator[PreparedCall]:
    """Yield the calls of finished tasks, in order."""
    for output in outputs:
        for call in points.of(output).get(points.PREPARED, ()):
            yield PreparedCall(output["task_id"], *call)
