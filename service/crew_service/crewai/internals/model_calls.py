"""Lets a watcher observe the calls to models, and a recorder answer and record them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from crewai import BaseLLM
from crewai.hooks import HookAborted
from pydantic import BaseModel

from crew_service.crewai.errors import causes
from crew_service.crewai.internals import Seam
from crew_service.crewai.internals.step_events import watch_events
from crew_service.crewai.internals.tool_calls import inside, keep_limit, recorders
from crew_service.crewai.internals.wrapping import Made, within, wrap_class, wrap_classes_to_come

BLOCKED = "LLMCallBlockedError"  # raised when a hook refuses a call; not in every version
ERROR = 400  # the lowest HTTP status code that means an error
_watchers: list[Watcher] = []
TOKENS = Seam(
    "tokens that CrewAI does not report as an event are not counted as they are used",
    {
        "crewai:BaseLLM._track_token_usage_internal": "a call may be stopped, or its model shared, before an event",
        "crewai.utilities.internal_instructor:InternalInstructor.to_pydantic": "it calls a provider beside the models",
        "crewai.types.usage_metrics:UsageMetrics.from_provider_dict": "providers report tokens by different names",
    },
)


class Watcher(Protocol):
    """Observes the model calls and events of this process synchronously, in the thread in which they occur."""

    def counting(self, model: BaseLLM, count: Callable[[], None]) -> None:
        """Run a model's own method for counting tokens."""

    def calling(self, model: Any, messages: Any) -> AbstractContextManager[Call]:
        """Wrap a model call; a call that also goes through the base class's method is wrapped twice."""

    def event(self, source: Any, event: Any) -> None:
        """Receive an event in the thread that emits it; handlers on the bus run later, in another thread."""


class Call(Protocol):
    answer: Any
    usage: Any  # the usage that the provider reported, if nothing else counts it
    used: dict[str, int]  # tokens, if counted


def watch_models(watcher: Watcher) -> None:
    """Let a watcher observe every current and future model class; it replaces any earlier watcher."""
    first = not _watchers
    _watchers[:] = [watcher]
    if not first:
        return
    models = {
        "_track_token_usage_internal": _counted,
        "call": within(_calling),
        "acall": within(_calling, is_async=True),
    }
    wrap_class(BaseLLM, models, BaseLLM)
    wrap_classes_to_come(BaseLLM, models)
    if not TOKENS.missing:
        TOKENS.wrap("InternalInstructor.to_pydantic", _converted)
    watch_events(lambda source, event: _watchers[0].event(source, event))


def _counted(count: Any) -> Callable[..., None]:
    def counted(model: BaseLLM, *args: Any, **kwargs: Any) -> None:
        _watchers[0].counting(model, lambda: count.__get__(model)(*args, **kwargs))

    return counted


@contextmanager
def _calling(model: BaseLLM, *args: Any, **kwargs: Any) -> Iterator[Made]:
    recorded = recorders[0].of_model(model, args, kwargs) if recorders else None
    if recorded and recorded.is_answered:
        keep_limit(is_made=False)
        yield Made([recorded.answer()])
        return
    keep_limit(is_made=True)
    made = Made()
    with inside(recorded), _watchers[0].calling(model, args[0] if args else kwargs.get("messages")) as call:
        yield made
        call.answer = made.answer[0]
    if recorded:
        made.answer = [recorded.end(call.answer, call.used)]


def _converted(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Record conversions that CrewAI leaves to the provider's own client, bypassing the model's methods and counts."""

    def converted(instructor: Any, *args: Any, **kwargs: Any) -> Any:
        request = instructor.llm, instructor.content, instructor.model
        recorded = recorders[0].of_conversion(*request) if recorders else None
        if recorded and recorded.is_answered:
            return recorded.answer()
        with inside(recorded), _watchers[0].calling(instructor.llm, None) as call:
            call.answer = convert(instructor, *args, **kwargs)
            usage = getattr(getattr(call.answer, "_raw_response", None), "usage", None)
            call.usage = usage.model_dump() if isinstance(usage, BaseModel) else usage
        return recorded.end(call.answer, call.used) if recorded else call.answer

    return converted


def reported(usage: dict[str, Any]) -> Any:
    """Return the tokens that a provider reported in its own words, as CrewAI counts them; None if it cannot."""
    return None if TOKENS.missing else TOKENS["UsageMetrics.from_provider_dict"](usage)


def used_nothing(error: BaseException) -> bool:
    """Whether a failed call was rejected before a model answered."""
    for cause in causes(error):
        status = getattr(cause, "status_code", None) or getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int) and status >= ERROR:
            return True
        if isinstance(cause, ConnectionRefusedError | socket.gaierror | HookAborted) or type(cause).__name__ == BLOCKED:
            return True
    return False
