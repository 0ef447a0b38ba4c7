"""What an authenticated webhook does: it is stored, then the task that waits for it is resumed.

Nothing here approves anything: a question ends a wait as pending, progress makes a worker poll the status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

from starlette.concurrency import run_in_threadpool

from airflow_crew_provider.compat import deferral
from airflow_crew_provider.core.inbox_messages import CREW, HumanInputRequest, is_of_another
from airflow_crew_provider.core.outcome import PENDING, SEEN, Outcome
from airflow_crew_provider.inbox import store as stored
from airflow_crew_provider.inbox.records import RegisteredTask
from airflow_crew_provider.inbox.store import DeferredTask, InboxStore
from airflow_crew_provider.models import Json

EventFor = Callable[[DeferredTask], Json | None]

log = logging.getLogger(__name__)

WOKEN = "woken by the crew's webhook"


class Result(StrEnum):
    """What became of a webhook."""

    TAKEN = "taken"
    KNOWN = "known"
    LATE = "late"
    RETIRED = "retired"
    FOREIGN = "foreign"
    FOREIGN_HOST = "foreign host"
    NO_QUESTION = "no question"
    NO_ASSET = "no asset"


def take_question(address: RegisteredTask, question: HumanInputRequest) -> Result:
    """Store a question to a person, once."""
    with stored.locked_store(address) as store:
        result = _judge_question(store, question)
        if result is Result.TAKEN:
            store.store(store.messages.asking(question))
    return result


def take_progress(address: RegisteredTask, kind: str, body: Json) -> Result:
    """Store progress, and the success of the crew once."""
    with stored.locked_store(address) as store:
        if is_of_another({body["kickoff_id"]}, store.task.root, store.task.kickoff_id):
            return Result.FOREIGN
        if store.over or (kind == CREW and store.messages.succeeded):
            return Result.LATE
        store.store(store.messages.with_progress(kind, body))
    return Result.TAKEN


def _judge_question(store: InboxStore, question: HumanInputRequest) -> Result:
    if is_of_another(question.ids, store.task.root, store.task.kickoff_id):
        return Result.FOREIGN
    if question.task_id in store.messages.asked:
        return Result.KNOWN
    if store.over or store.messages.full:
        return Result.LATE
    return Result.RETIRED if store.replaced else Result.TAKEN


def asked(address: RegisteredTask, question: HumanInputRequest) -> EventFor:
    """Return what makes the event for a task that waits for this question; None for other tasks."""

    def event_for(waiting: DeferredTask) -> Json | None:
        kickoff_id = waiting.kwargs.get("kickoff_id")
        polls_here = (waiting.kwargs.get("inbox") or {}).get("registration") == address.registration.id
        if not polls_here or kickoff_id not in question.ids:
            return None
        return Outcome(PENDING, kickoff_id, crew_task_id=question.task_id).to_event()

    return event_for


def succeeded(kickoff_id: str) -> EventFor:
    """Return what makes the event of a task that waits for an execution: a worker polls the status."""

    def event_for(waiting: DeferredTask) -> Json | None:
        same = waiting.kwargs.get("kickoff_id") == kickoff_id
        return Outcome(SEEN, kickoff_id, WOKEN).to_event() if same else None

    return event_for


async def wake(address: RegisteredTask, mark: str, event_for: EventFor) -> None:
    """Resume tasks of the DAG run that registered."""
    await resume_tasks(lambda: stored.waiting(address, mark), event_for)


async def resume_tasks(find: Callable[[], list[DeferredTask]], event_for: EventFor) -> None:
    """Resume tasks; the message is stored already, so after a failure their next poll finds it."""
    try:
        for waiting in await run_in_threadpool(find):
            event = event_for(waiting)
            if event is not None:
                await asyncio.sleep(deferral.NOTICED_AFTER - (datetime.now(UTC) - waiting.since).total_seconds())
                await run_in_threadpool(stored.wake, waiting, event)
                log.info("A webhook woke %s of %s", waiting.task_id, waiting.run_id)
    except Exception:
        log.exception("A webhook was stored, but the waiting tasks could not be resumed; their next poll finds it")
