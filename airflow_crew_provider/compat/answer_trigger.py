"""Waits for a person's answer: before Airflow 3.3, for any answer; from 3.3 on, only for one that may already exist.

Airflow's own trigger fires at once if the answer already exists, and Airflow fails a task that resumes before the
scheduler has noticed that it left its worker (see `deferral`). An API client may send any JSON in an answer's fields,
including names that Airflow's serialization reserves: Airflow stores such fields but cannot deliver them to the task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.standard.triggers.hitl import HITLTrigger
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail
from airflow.triggers.base import TriggerEvent
from asgiref.sync import sync_to_async

from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import ANSWER_TRIGGER_CLASS_PATH, VALIDATION

try:
    from airflow.sdk.serde import deserialize, serialize
except ImportError:  # before Airflow 3.2
    from airflow.serialization.serde import deserialize, serialize  # type: ignore[no-redef]


def unreadable(params_input: Json | None) -> str | None:
    """Return a sentence that names the fields of an answer that cannot be read back; None if all can be."""
    lost = [name for name, value in (params_input or {}).items() if not _comes_back({name: value})]
    return f"Airflow cannot read back these fields: {', '.join(lost[:10])}" if lost else None


def _comes_back(field: Json) -> bool:
    try:
        return bool(deserialize(serialize(field)) == field)
    except Exception:  # which error is raised depends on the value
        return False


NO_ANSWER, NO_FORM = "no answer", "no form"
_NOT_FOUND = 404


class AnswerTrigger(HITLTrigger):
    """Fires with the answer or at the deadline, like `HITLTrigger`, but not before a given time.

    :param not_before: the earliest time to fire, in epoch seconds
    :param once: fire at that time even if there is no answer or no form
    """

    def __init__(self, *, not_before: float, once: bool = False, **answer: Any) -> None:
        super().__init__(**answer)
        self.not_before = not_before
        self.once = once

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and all arguments."""
        _, answer = super().serialize()
        return ANSWER_TRIGGER_CLASS_PATH, {
            **answer,
            "not_before": self.not_before,
            **({"once": True} if self.once else {}),
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until the task has left its worker, then wait for the answer."""
        await asyncio.sleep(max(0.0, self.not_before - time.time()))
        lacks = await self._lacks() if self.once else None
        if lacks:
            yield TriggerEvent({"error": f"There is {lacks}", "error_type": lacks})
            return
        async for event in super().run():
            yield await self._fit_to_store(event)

    async def _fit_to_store(self, event: TriggerEvent) -> TriggerEvent:
        """Return an event that reports invalid fields but omits them: Airflow could not deliver them to the task."""
        is_invalid = event.payload.get("error_type") == VALIDATION
        problem = event.payload["error"] if is_invalid else unreadable(event.payload.get("params_input"))
        if problem is None:
            return event
        answer = await sync_to_async(get_hitl_detail_content_detail)(ti_id=self.ti_id)
        fields = {
            "chosen_options": list(answer.chosen_options or []),
            "responded_at": answer.responded_at,
            "responded_by_user": self._get_responder(answer),
        }
        return TriggerEvent({**fields, "params_input": {}, "error": problem, "error_type": VALIDATION})

    async def _lacks(self) -> str | None:
        """Return what is missing; None if there is an answer."""
        try:
            form = await sync_to_async(get_hitl_detail_content_detail)(ti_id=self.ti_id)
        except AirflowRuntimeError as error:
            if (error.error.detail or {}).get("status_code") == _NOT_FOUND:
                return NO_FORM
            raise
        return None if form.response_received else NO_ANSWER
