"""What becomes of a webhook that has proven itself: it is stored, then a task that waits for it is woken.

Nothing here approves anything: a question makes a wait end as pending, progress makes a worker look at the status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

from airflow.configuration import conf
from starlette.concurrency import run_in_threadpool

from airflow_crew_provider.boxes import CREW, Question, is_of_another
from airflow_crew_provider.inbox import airflow_db
from airflow_crew_provider.inbox.airflow_db import Address, Desk, Waiting
from airflow_crew_provider.models import Json
from airflow_crew_provider.waiting import PENDING, SEEN, Outcome

EventFor = Callable[[Waiting], Json | None]

log = logging.getLogger(__name__)

WOKEN = "woken by the crew's webhook"
# Airflow 3.3.2 fails a task that goes on before its scheduler has noticed the deferral (apache/airflow 66374). The
# supervisor may tell it as late as its next heartbeat; the rest is for the scheduler's own turn.
SETTLED = conf.getint("workers", "min_heartbeat_interval", fallback=5) + 3.0


class Result(StrEnum):
    """What became of a webhook."""

    TAKEN = "taken"
    KNOWN = "known"
    LATE = "late"
    RETIRED = "retired"
    FOREIGN = "foreign"


def take_question(address: Address, question: Question) -> Result:
    """Store a question to a person, once."""
    with airflow_db.desk(address) as desk:
        result = _judge_question(desk, question)
        if result is Result.TAKEN:
            desk.store(desk.box.asking(question))
    return result


def take_progress(address: Address, kind: str, body: Json) -> Result:
    """Store progress, and the success of the crew once."""
    with airflow_db.desk(address) as desk:
        if is_of_another({body["kickoff_id"]}, desk.root, desk.posted):
            return Result.FOREIGN
        if desk.over or (kind == CREW and desk.box.succeeded):
            return Result.LATE
        desk.store(desk.box.told(kind, body))
    return Result.TAKEN


def _judge_question(desk: Desk, question: Question) -> Result:
    if is_of_another(question.ids, desk.root, desk.posted):
        return Result.FOREIGN
    if question.task_id in desk.box.asked:
        return Result.KNOWN
    if desk.over or desk.box.full:
        return Result.LATE
    return Result.RETIRED if desk.replaced(desk.root) else Result.TAKEN


def asked(address: Address, question: Question) -> EventFor:
    """Return what makes the event of a task that waits for a question; None for other tasks."""

    def event_for(waiting: Waiting) -> Json | None:
        kickoff_id = waiting.kwargs.get("kickoff_id")
        looks_here = (waiting.kwargs.get("inbox") or {}).get("registration") == address.registration.id
        if not looks_here or kickoff_id not in question.ids:
            return None
        return Outcome(PENDING, kickoff_id, crew_task_id=question.task_id).to_event()

    return event_for


def succeeded(kickoff_id: str) -> EventFor:
    """Return what makes the event of a task that waits for an execution: a worker shall look."""

    def event_for(waiting: Waiting) -> Json | None:
        same = waiting.kwargs.get("kickoff_id") == kickoff_id
        return Outcome(SEEN, kickoff_id, WOKEN).to_event() if same else None

    return event_for


async def wake(address: Address, mark: str, event_for: EventFor) -> None:
    """Wake tasks; the message is stored already, so a failure leaves it to their next look."""
    try:
        for waiting in await run_in_threadpool(airflow_db.waiting, address, mark):
            event = event_for(waiting)
            if event is not None:
                await asyncio.sleep(SETTLED - (datetime.now(UTC) - waiting.since).total_seconds())
                await run_in_threadpool(airflow_db.wake, waiting, event)
                log.info("A webhook woke %s of %s", waiting.task_id, address.run_id)
    except Exception:
        log.exception("A webhook was stored, but no task could be woken; they find it at their next look")
