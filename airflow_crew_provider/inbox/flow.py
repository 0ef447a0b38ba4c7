"""What a signed webhook of a Flow does: its question is stored, then the task that waits for it is resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from airflow_crew_provider.compat import flow_store
from airflow_crew_provider.compat.flow_store import FlowSender
from airflow_crew_provider.core import flow_webhooks
from airflow_crew_provider.core.addresses import is_allowed
from airflow_crew_provider.core.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.core.outcome import PENDING, Outcome
from airflow_crew_provider.inbox import store
from airflow_crew_provider.inbox.receiving import Result, resume_tasks
from airflow_crew_provider.inbox.store import DeferredTask
from airflow_crew_provider.models import Json


def is_proven(sender: FlowSender, headers: Mapping[str, str], raw: bytes, *, now: float | None = None) -> bool:
    """Whether a webhook is signed with the secret of the connection, and fresh."""
    return flow_webhooks.is_signed(sender.secret, headers, raw, now=time.time() if now is None else now)


def take(sender: FlowSender, question: FlowQuestion, address: AnswerAddress) -> Result:
    """Store a question, once; one whose answer would go to a foreign host is refused."""
    url = address.callback_url
    if url is not None and not is_allowed(url, sender.base_url, sender.callback_hosts):
        return Result.FOREIGN_HOST
    stored = flow_store.store(sender.crew_conn_id, question, address, datetime.now(UTC))
    return Result.TAKEN if stored else Result.KNOWN


async def wake(sender: FlowSender, question: FlowQuestion) -> None:
    """Resume the tasks that wait for this execution."""

    def waiting() -> list[DeferredTask]:
        return store.waiting_for(question.ids)

    def event_for(waiting: DeferredTask) -> Json | None:
        kickoff_id = waiting.kwargs.get("kickoff_id")
        same = waiting.kwargs.get("crew_conn_id") == sender.crew_conn_id and kickoff_id in question.ids
        if not same or waiting.kwargs.get("wait_past_pending"):
            return None
        return Outcome(PENDING, str(kickoff_id), crew_task_id=question.id).to_event()

    await resume_tasks(waiting, event_for)
