"""The state of a running execution: tasks, usage, steps, and the last question that was answered.

It is read from the row when a segment begins, follows the crew's reports, and returns the columns to store. It writes
nothing itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Row

from crew_service.engine import usage
from crew_service.engine.crew import JournalEntry, Step, TokensUsed
from crew_service.engine.questions import question_of

MOST_TOKENS = 2**31 - 1  # the maximum of the column `tokens`; `usage` has the exact number
MOST_OPEN = 200  # tasks that have started but not finished
SHOWN = ("task_id", "output", "agent", "execution_time")  # per task, when the crew has finished


class RunState:
    def __init__(self, row: Row[Any], done: list[Any]) -> None:
        self.done = list(done)
        self.asked: list[str] = row.asked
        self.answered = question_of(row)
        self.digests: dict[str, str] = {}  # by task: of everything that determines its output
        self.steps: int = row.steps
        self.kills: int = row.kills
        self.has_flow_state = bool(done) or self.answered is not None  # perhaps; it may contain secrets
        self.used = self._used_before = usage.totals_of(row)
        self._used_earlier = usage.earlier(row)["total_tokens"]
        self._models = usage.read(row.model_usage)
        self._open: dict[str, dict[str, Any]] = {name: dict(task) for name, task in (row.open_tasks or {}).items()}
        self._counted: dict[tuple[str, str], usage.Figures] = {}  # in this segment

    @property
    def tokens(self) -> int:
        """The tokens used so far."""
        return self.used["total_tokens"]

    @property
    def tokens_of_chain(self) -> int:
        """The tokens used so far, with those of the executions that it continues."""
        return self.tokens + self._used_earlier

    @property
    def open_tasks(self) -> dict[str, Any]:
        """The columns about unfinished tasks."""
        return {"model_usage": self._models or None, "open_tasks": self._open or None}

    @property
    def cost(self) -> dict[str, Any]:
        """The columns about usage, which belong to the open tasks too; a write books what they add."""
        tokens = min(self.tokens, MOST_TOKENS)
        booked = {"booked": usage.by_model(self.used, self._models), "booked_tokens": tokens}
        return {"tokens": tokens, "usage": self.used, **booked, **self.open_tasks}

    @property
    def finished_tasks(self) -> list[Any]:
        """The finished tasks as a completed execution shows them."""
        return [{name: value for name, value in task.items() if name in SHOWN} for task in self.done]

    def is_gone(self, call: JournalEntry) -> bool:
        """Return whether a call's task is no longer among the crew's tasks, or now has another id."""
        digest = self.digests.get(call.task_id)
        return digest is None or (digest != call.digest and call.digest in self.digests.values())

    def begin(self, task_id: str, agent: str, *, now: float) -> None:
        if (task := self._task(task_id)) is not None:
            task["agent"] = agent
            task.setdefault("started_at", now)

    def end(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return a finished task's times and usage."""
        known = self._open.pop(task["task_id"], {})
        return {
            "started_at": known.get("started_at"),
            "seconds": task["execution_time"],
            "usage": known.get("usage", {}),
        }

    def take(self, step: Step) -> bool:
        """Note a step; return whether it began before. One that the journal keeps is progress since the last kill."""
        if step.is_kept:
            self.kills = 0
        is_known = step.number <= self.steps
        self.steps = max(self.steps, step.number)
        return is_known

    def count(self, reported: TokensUsed) -> usage.ByModel:
        """Add this segment's counts to those of earlier ones; return the increase by model."""
        self.used = usage.added(self._used_before, usage.of_report(reported))
        changed: dict[str, Counter[str]] = defaultdict(Counter)  # usage moved to another task is subtracted here
        for task_id, models in reported.by_task.items():
            for model, used in models.items():
                figures = usage.of_model(used)
                more = usage.since(figures, self._counted.get((task_id, model), {}))
                self._counted[task_id, model] = figures
                changed[model].update(more)
                if (task := self._task(task_id)) is not None:
                    usage.add_to(task.setdefault("usage", {}), model, more, most=usage.MOST_MODELS_OF_TASK)
        usage.merge(self._models, changed)
        return {model: usage.of_model(dict(more)) for model, more in changed.items()}

    def _task(self, task_id: str) -> dict[str, Any] | None:
        if not task_id or (task_id not in self._open and len(self._open) >= MOST_OPEN):
            return None
        return self._open.setdefault(task_id, {})
