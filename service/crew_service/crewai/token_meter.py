"""Reports how many tokens this process has used: after each answer of a model, and before other progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from crewai.events import LLMCallCompletedEvent, crewai_event_bus

from crew_service.crewai.usage import Usage
from crew_service.engine.crew import Progress, Report, TokensUsed


class TokenMeter:
    """A `Report` that counts; `count` gives what this process has used so far."""

    def __init__(self, count: Callable[[], Usage], report: Report) -> None:
        self._count = count
        self._report = report
        self._reported = 0
        self._lock = threading.Lock()
        crewai_event_bus.on(LLMCallCompletedEvent)(self._answered)

    def __call__(self, progress: Progress) -> None:
        self.tell()
        self._report(progress)

    def _answered(self, source: Any, event: LLMCallCompletedEvent) -> None:
        self.tell()

    def tell(self) -> None:
        """Report what was used since the last report, if anything was."""
        used = self._count()
        total = used["total_tokens"]
        with self._lock:
            grew, self._reported = total > self._reported, max(total, self._reported)
        if grew:
            self._report(TokensUsed(total, used))
