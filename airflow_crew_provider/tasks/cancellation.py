"""Why a wait is cancelled: a user ended its task, or its process ends and the wait continues elsewhere.

A task that was resumed by a webhook no longer waits either; its execution must not be stopped. The next try of a
cleared task decides what becomes of its execution.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress
from threading import Thread
from typing import Any

from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.supervisor import KILLS_CALL_ON_KILL, AirflowTaskTimeout, runs_in_worker, task_state

# The states of a task that still wants its execution: waiting, about to take its result, or (None) cleared. A task
# that is cleared while it runs is "restarting" instead, and its next try cannot be distinguished from a retry.
GOES_ON = ("deferred", "scheduled", "queued", "running", "up_for_retry", "up_for_reschedule", None)
STOPPING = 20.0
LOOKUP_SECONDS = 3.0


def must_be_distinguished() -> bool:
    """Whether this Airflow cancels triggers without saying why; 3.3 calls `on_kill` for a user's action only."""
    return not KILLS_CALL_ON_KILL


async def to_its_end(work: Coroutine[Any, Any, None], seconds: float = STOPPING) -> None:
    """Finish what a kill requires, although Airflow 3.3 cancels the trigger again about once a second."""
    clock = asyncio.get_running_loop().time
    task, ends = asyncio.ensure_future(work), clock() + seconds
    while not task.done() and clock() < ends:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=ends - clock())


async def is_by_user(trigger: Any, *, without_task: bool) -> bool:
    """Whether the trigger's task has left the states in which it goes on.

    :param without_task: the answer for a trigger that runs outside of a triggerer, of no task
    """
    ti = trigger.task_instance
    if ti is None:
        return without_task
    try:
        state = await sync_to_async(task_state)(ti)
    except Exception:
        trigger.log.warning("The task's state could not be looked up; the execution is not stopped", exc_info=True)
        return False
    return state not in GOES_ON


def is_for_good(ti: Any) -> bool:
    """Whether a user or a timeout ends a task that a worker runs.

    A worker that shuts down, or whose task could not reach Airflow for a while, kills it in the same way: then the
    next try goes on with the execution. A task that runs outside of a worker has no next try.
    """
    if isinstance(sys.exc_info()[1], AirflowTaskTimeout) or ti is None or not runs_in_worker(ti):
        return True
    seen: list[str | None] = []

    def look_up() -> None:
        with suppress(Exception):
            seen.append(task_state(ti))

    # In a thread: this is a signal handler, and the interrupted code may hold the connection to Airflow.
    thread = Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(LOOKUP_SECONDS)
    return bool(seen) and seen[0] not in GOES_ON
