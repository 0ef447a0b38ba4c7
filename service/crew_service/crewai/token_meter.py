"""Reports how many tokens this process has used: after each answer of a model, and before other progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from crewai.events import LLMCallCompletedEvent, crewai_event_bus

from crew_service.engine.crew import Progress, Report, TokensUsed


class TokenMeter:
    """A `Report` that counts; `count` gives the tokens of this process so far."""

    def __init__(self, count: Callable[[], int], report: Report) -> None:
        self._count = count
        self._report = report
        self._reported = 0
        self._lock = threading.Lock()
        crewai_event_bus.on(LLMCallCompletedEvent)(self._answered)

    def __call__(self, progress: Progress) -> None:
        self._tell()
        self._report(progress)

    def _answered(self, source: Any, event: LLMCallCompletedEvent) -> None:
        self._tell()

    def _tell(self) -> None:
        total = self._count()
        with self._lock:
            grew, self._reported = total > self._reported, max(total, self._reported)
        if grew:
            self._report(TokensUsed(total))
