"""Waits for the answer of a person: before Airflow 3.3 for each, from 3.3 on for one that may be there already.

Tried on 3.1.8, 3.2.2 and 3.3.2.

Airflow's own trigger fires at once where the answer is there already, and a task that comes back before the scheduler
has noticed that it left its worker is failed (see `deferral`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.standard.triggers.hitl import HITLTrigger
from airflow.triggers.base import TriggerEvent

from airflow_crew_provider.core.stored_names import ANSWER_TRIGGER_CLASS_PATH


class AnswerTrigger(HITLTrigger):
    """Fire with the answer or at the deadline, as `HITLTrigger`, but not at once.

    :param not_before: when it may fire, in epoch seconds
    """

    def __init__(self, *, not_before: float, **answer: Any) -> None:
        super().__init__(**answer)
        self.not_before = not_before

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and all arguments."""
        _, answer = super().serialize()
        return ANSWER_TRIGGER_CLASS_PATH, {**answer, "not_before": self.not_before}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Let the task leave its worker, then wait."""
        await asyncio.sleep(max(0.0, self.not_before - time.time()))
        async for event in super().run():
            yield event
