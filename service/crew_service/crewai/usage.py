"""Counts what this process uses of language models, by task and model, and reports it.

Most models count their own tokens, which is read as soon as they do, in the thread that runs the task. A model that
leaves this to CrewAI's events is counted by these: an event that follows a model's own count tells of the same call.
A call of which neither tells any tokens is counted as a call, so that nobody takes the total for all that was used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from crewai import Crew
from crewai.events import LLMCallCompletedEvent, LLMCallStartedEvent, crewai_event_bus
from crewai.llms.base_llm import BaseLLM
from crewai.types.usage_metrics import UsageMetrics

from crew_service.crewai import internals
from crew_service.engine.crew import Progress, Report, TokensUsed
from crew_service.prices import UNCOUNTED

Model: type[Any] = BaseLLM
Usage = dict[str, int]
COUNTED = ("total_tokens", "prompt_tokens", "completion_tokens")
BY_MODELS = (*COUNTED, "cached_prompt_tokens")  # what a model counts
FIGURES = (*BY_MODELS, UNCOUNTED)
Key = tuple[str, str]  # a task and a model
# Where the present call of a model was counted, and how many of its tokens; until the event that ends the call.
CALL: ContextVar[tuple[int, dict[Key, Usage]] | None] = ContextVar("the call of a model that is counted", default=None)


class TokenMeter:
    """A `Report` that counts.

    :param task_of: the task of a model's call that is made or told in the present context, by CrewAI's id of the task
        where an event names it; empty where no task runs
    """

    def __init__(self, report: Report, task_of: Callable[[str | None], str], models: Iterable[BaseLLM] = ()) -> None:
        self._report = report
        self._task_of = task_of
        self._lock = threading.RLock()
        self._used: dict[Key, Usage] = {}
        self._grown: set[Key] = set()
        self._known: dict[int, tuple[BaseLLM, Usage]] = {}
        self._ended: dict[int, Any] = {}  # the newest call of each model that was counted
        for model in models:
            self._known[id(model)] = model, dict.fromkeys(BY_MODELS, 0)
            internals.watch_count(type(model), self._counting)
        internals.watch_count(Model, self._counting)
        internals.watch_events(self._event)
        crewai_event_bus.on(LLMCallCompletedEvent)(self._answered)

    def __call__(self, progress: Progress) -> None:
        self.tell()
        self._report(progress)

    @property
    def total(self) -> Usage:
        with self._lock:
            return {name: sum(used[name] for used in self._used.values()) for name in COUNTED}

    def tell(self) -> None:
        """Report what was used since the last report, if anything was."""
        with self._lock:
            for model, _ in list(self._known.values()):
                self._take(model)
            grown, self._grown = self._grown, set()
            by_task: dict[str, dict[str, Usage]] = {}
            for task, model_name in grown:
                by_task.setdefault(task, {})[model_name] = dict(self._used[task, model_name])
            total = self.total
        if grown:
            self._report(TokensUsed(total["total_tokens"], total, by_task))

    def _answered(self, source: Any, event: LLMCallCompletedEvent) -> None:
        self.tell()

    def _counting(self, model: BaseLLM, count: Callable[[], None]) -> None:
        """Let a model count its tokens, and add them to those of the task that runs."""
        with self._lock:
            self._known.setdefault(id(model), (model, _counters(model)))
            count()
            self._take(model)

    def _event(self, source: Any, event: Any) -> None:
        if isinstance(event, LLMCallStartedEvent) and isinstance(source, BaseLLM):
            internals.watch_count(type(source), self._counting)
            with self._lock:
                self._known.setdefault(id(source), (source, _counters(source)))
        elif isinstance(event, LLMCallCompletedEvent):
            with self._lock:
                self._completed(source, event)

    def _completed(self, source: Any, event: LLMCallCompletedEvent) -> None:
        """Move what the call has counted to the task that the event names, or count by the event."""
        if id(source) in self._known:
            self._take(source)
        key = self._task_of(event.task_id), event.model or ""
        call = CALL.get()
        CALL.set(None)
        again = self._ended.get(id(source)) == event.call_id
        self._ended[id(source)] = event.call_id
        if call is None or call[0] != id(source):
            used = UsageMetrics.from_provider_dict(event.usage)
            if used and used.total_tokens:
                self._add(key, {name: getattr(used, name) for name in BY_MODELS})
            elif not again:
                self._add(key, {UNCOUNTED: 1})
            return
        for counted, used_here in call[1].items():
            moved = (key[0], counted[1])
            if key[0] and moved != counted:
                self._add(counted, {name: -value for name, value in used_here.items()})
                self._add(moved, used_here)

    def _take(self, model: BaseLLM) -> None:
        """Add what a model has counted since it was last asked."""
        before, now = self._known[id(model)][1], _counters(model)
        self._known[id(model)] = model, now
        grown = {name: max(0, now[name] - before[name]) for name in BY_MODELS}
        if not any(grown.values()):
            return
        key = self._task_of(None), str(getattr(model, "model", None) or "")
        self._add(key, grown)
        call = CALL.get()
        counted = dict(call[1]) if call and call[0] == id(model) else {}
        counted[key] = added(counted.get(key, {}), grown, FIGURES)
        CALL.set((id(model), counted))

    def _add(self, key: Key, more: Usage) -> None:
        self._used[key] = added(self._used.get(key, {}), more, FIGURES)
        self._grown.add(key)


def models_of(crew: Crew) -> list[BaseLLM]:
    """Return each model of a crew once, however many agents share it."""
    agents = [*crew.agents, *(task.agent for task in crew.tasks), crew.manager_agent]
    candidates = [getattr(agent, "llm", None) for agent in agents]
    candidates += [crew.manager_llm, crew.planning_llm]
    return list({id(model): model for model in candidates if isinstance(model, BaseLLM)}.values())


def added(one: Usage, other: Usage, names: Iterable[str] = COUNTED) -> Usage:
    return {name: one.get(name, 0) + other.get(name, 0) for name in names}


def _counters(model: BaseLLM) -> Usage:
    used = model.get_token_usage_summary()
    return {name: getattr(used, name) for name in BY_MODELS}
