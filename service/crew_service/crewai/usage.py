"""Counts this process's language model usage by task and model, and reports it.

Most models count their own tokens. The counts are read immediately, in the thread that runs the task. If a model relies
on CrewAI's events instead, its tokens are taken from them; an event within a call that has already been counted merely
repeats the call's tokens. A call without token counts is recorded as uncounted, so that the total is not taken to be
complete: this applies to models that only define their own `call`, and to calls that may have failed after an answer.
Only a model that passes its messages to another model, or returns another model's answer, needs no counts of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from crewai import BaseLLM
from crewai.events import LLMCallCompletedEvent, crewai_event_bus

from crew_service.crewai.internals import model_calls
from crew_service.engine.crew import Progress, Report, TokensUsed
from crew_service.prices import CACHED, COUNTED, FIGURES, LONG, LONG_PROMPT, UNCOUNTED, WRITTEN

Usage = dict[str, int]
BY_MODELS = (*COUNTED, CACHED, WRITTEN)  # the counts that a model itself provides
Key = tuple[str, str]  # task and model


class Call:
    """Tracks one model call until it returns."""

    def __init__(self, model: Any, messages: Any) -> None:
        self.model = model
        self.messages = messages
        self.answer: Any = None
        self.usage: Any = None
        self.used: Usage = {}
        self.counted: dict[Key, Usage] = {}  # the part of `used` that no event has reported yet
        self.is_told = False  # whether its tokens, or their absence, have been reported
        self.inner: list[Call] = []  # successful calls that it made to other models

    def is_handed_on_to(self, other: Call) -> bool:
        return _same(self.messages, other.messages) or _same(self.answer, other.answer)


CALL: ContextVar[Call | None] = ContextVar("the running model call", default=None)


class TokenMeter:
    """A `Report` that counts usage.

    :param task_of: returns the task of a model's call or event in the current context, given CrewAI's task id if the
        event has one; returns an empty string if no task is running
    """

    def __init__(self, report: Report, task_of: Callable[[str | None], str], models: Iterable[BaseLLM] = ()) -> None:
        self._report = report
        self._task_of = task_of
        self._lock = threading.RLock()
        self._used: dict[Key, Usage] = {}
        self._grown: set[Key] = set()
        self._known: dict[int, tuple[BaseLLM, Usage]] = {}  # by counter: copies of a model may share one
        self._calls: list[Call] = []  # running ones
        self._ended: dict[int, Any] = {}  # by model: the newest call whose event has arrived
        for model in models:
            self._known[_counter(model)] = model, dict.fromkeys(BY_MODELS, 0)
        model_calls.watch_models(self)
        crewai_event_bus.on(LLMCallCompletedEvent)(self._answered)

    def __call__(self, progress: Progress) -> None:
        self.tell()
        self._report(progress)

    @property
    def total(self) -> Usage:
        with self._lock:
            return {name: sum(used[name] for used in self._used.values()) for name in COUNTED}

    def tell(self) -> None:
        """Report the usage if it has grown since the last report."""
        with self._lock:
            for model, _ in list(self._known.values()):
                self._take(model)
            grown, self._grown = self._grown, set()
            by_task: dict[str, dict[str, Usage]] = {}
            for task, model_name in grown:
                by_task.setdefault(task, {})[model_name] = dict(self._used[task, model_name])
            total = self.total
            if grown:  # within the lock, so that no report overtakes another
                self._report(TokensUsed(total["total_tokens"], total, by_task))

    def _answered(self, source: Any, event: LLMCallCompletedEvent) -> None:
        self.tell()

    def counting(self, model: BaseLLM, count: Callable[[], None]) -> None:
        """Let a model count its tokens, and add them to the running task."""
        with self._lock:
            self._know(model)
            count()
            self._take(model)

    @contextmanager
    def calling(self, model: Any, messages: Any) -> Iterator[Call]:
        """Track a call until it returns; count it even if nothing reports its tokens."""
        outer = CALL.get()
        if outer and outer.model is model:
            yield outer
            return
        call = Call(model, messages)
        with self._lock:
            self._know(model)
            self._calls.append(call)
        before = CALL.set(call)
        try:
            yield call
        except BaseException as error:
            self._over(call, used_nothing=model_calls.used_nothing(error))
            raise
        else:
            self._over(call)
            if outer:
                outer.inner.append(call)
        finally:
            CALL.reset(before)
            with self._lock:
                self._calls.remove(call)

    def _over(self, call: Call, *, used_nothing: bool = False) -> None:
        with self._lock:
            self._take(call.model)
            key = self._task_of(None), _name(call.model)
            if not call.is_told and (figures := _figures(call.usage)):
                self._add(key, figures, call)
            elif not (call.is_told or used_nothing or any(map(call.is_handed_on_to, call.inner))):
                self._add(key, {UNCOUNTED: 1})
        self.tell()  # before the answer is recorded, because a call answered from the journal is not counted

    def event(self, source: Any, event: Any) -> None:
        """Move a call's counts to the task that the event names, or take the counts from the event."""
        if not isinstance(event, LLMCallCompletedEvent):
            return
        with self._lock:
            if _counter(source) in self._known:
                self._take(source)
            key = self._task_of(event.task_id), event.model or ""
            call = self._call_of(source)
            again = self._ended.get(id(source)) == event.call_id
            self._ended[id(source)] = event.call_id
            if call and call.counted:
                self._move(call, key[0])
            elif figures := _figures(event.usage):
                self._add(key, figures, call)
            elif not again:
                self._add(key, {UNCOUNTED: 1})
            if call:
                call.counted, call.is_told = {}, True

    def _move(self, call: Call, task: str) -> None:
        for counted, used in call.counted.items():
            moved = (task, counted[1])
            if task and moved != counted:
                self._add(counted, {name: -value for name, value in used.items()})
                self._add(moved, used)

    def _know(self, model: Any) -> None:
        if isinstance(model, BaseLLM):
            self._known.setdefault(_counter(model), (model, _counters(model)))

    def _take(self, model: Any) -> None:
        """Add what a model has counted since the last call to this method."""
        if not isinstance(model, BaseLLM):
            return
        counter = _counter(model)
        before, now = self._before(model, counter), _counters(model)
        self._known[counter] = model, now
        grown = {name: max(0, now[name] - before[name]) for name in BY_MODELS}
        if not any(grown.values()):
            return
        key = self._task_of(None), _name(model)
        call = self._call_of(model)
        self._add(key, grown, call)
        if call:
            call.counted[key] = added(call.counted.get(key, {}), grown)
            call.is_told = True

    def _before(self, model: BaseLLM, counter: int) -> Usage:
        """Return what a model had counted before; if it has replaced its counters, in those that it had last."""
        if counter in self._known:
            return self._known[counter][1]
        last = next((counts for known, counts in reversed(self._known.values()) if known is model), {})
        now = _counters(model)
        went_on = all(now[name] >= last.get(name, 0) for name in BY_MODELS)
        return {name: last.get(name, 0) if went_on else 0 for name in BY_MODELS}

    def _call_of(self, model: Any) -> Call | None:
        """Return the model's running call, even in one of the model's own threads, whose context may lack it."""
        here = CALL.get()
        if here and here.model is model:
            return here
        running = [call for call in self._calls if call.model is model]
        return next((call for call in running if not call.is_told), running[-1] if running else None)

    def _add(self, key: Key, more: Usage, call: Call | None = None) -> None:
        if more.get("prompt_tokens", 0) > LONG_PROMPT:
            more = {LONG: 1, **more}  # a call that is moved to another task keeps its mark
        if call:
            call.used = added(call.used, more)
        self._used[key] = added(self._used.get(key, {}), more)
        self._grown.add(key)


def models_of(agents: Iterable[Any], *others: Any) -> list[BaseLLM]:
    """Return each model of the agents, and each of the others, once."""
    candidates = [*(getattr(agent, "llm", None) for agent in agents), *others]
    return list({id(model): model for model in candidates if isinstance(model, BaseLLM)}.values())


def added(one: Usage, other: Usage) -> Usage:
    return {name: one.get(name, 0) + other.get(name, 0) for name in FIGURES}


def _name(model: Any) -> str:
    return model if isinstance(model, str) else str(getattr(model, "model", None) or "")


def _counter(model: Any) -> int:
    counts = getattr(model, "_token_usage", None)
    return id(model if counts is None else counts)


def _counters(model: BaseLLM) -> Usage:
    used: Any = None
    with suppress(Exception):  # raised by a user's method
        used = model.get_token_usage_summary()
    figures = used if isinstance(used, dict) else {name: getattr(used, name, 0) for name in BY_MODELS}
    return {name: value if type(value := figures.get(name)) is int else 0 for name in BY_MODELS}


def _figures(usage: Any) -> Usage | None:
    """Return the token counts that a provider reported; None if there are none."""
    used = model_calls.reported(usage) if isinstance(usage, dict) else None
    return {name: getattr(used, name, 0) for name in BY_MODELS} if used and used.total_tokens else None


def _same(one: Any, other: Any) -> bool:
    with suppress(Exception):  # raised by a user's comparison method
        return one is not None and (one is other or bool(one == other))
    return False
