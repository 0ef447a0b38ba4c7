"""Why a wait is broken off: a user ended its task, or the process ends that waits, and the wait goes on elsewhere.

A task that was woken by a webhook is not waiting any more either; nobody wants its execution stopped. What a
cleared task has started is for its next try to judge.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress
from threading import Thread
from typing import Any

from airflow.triggers.base import BaseTrigger
from asgiref.sync import sync_to_async

try:
    from airflow.sdk.exceptions import AirflowTaskTimeout
except ImportError:  # before Airflow 3.1
    from airflow.exceptions import AirflowTaskTimeout  # type: ignore[no-redef]

# The states of a task that still wants its execution: waiting, about to take its result, or (None) cleared. A task
# that is cleared while it runs is "restarting" instead, and its next try cannot be told from a retry.
GOES_ON = ("deferred", "scheduled", "queued", "running", "up_for_retry", "up_for_reschedule", None)
DELETED = "deleted"
STOPPING = 20.0
LOOKING = 3.0


def must_be_told_apart(trigger: BaseTrigger) -> bool:
    """Whether this Airflow cancels triggers without saying why; 3.3 calls `on_kill` for a user's action only."""
    return not hasattr(BaseTrigger, "on_kill")


async def to_its_end(work: Coroutine[Any, Any, None], seconds: float = STOPPING) -> None:
    """Do what a kill asks for, although Airflow 3.3 cancels the trigger anew at each round, about once a second."""
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
        state = await sync_to_async(_state)(ti)
    except Exception:
        trigger.log.warning("The task's state could not be looked up; the execution is not stopped", exc_info=True)
        return False
    return state not in GOES_ON


def is_for_good(ti: Any) -> bool:
    """Whether a user or a timeout ends a task that a worker runs.

    A worker that shuts down, or whose task could not reach Airflow for a while, kills it in the same way: then the
    next try goes on with the execution. A task that runs outside of a worker has no next try.
    """
    if isinstance(sys.exc_info()[1], AirflowTaskTimeout) or ti is None or not _has_supervisor():
        return True
    seen: list[str | None] = []

    def look() -> None:
        with suppress(Exception):
            seen.append(_state(ti))

    # In a thread: this is a signal's handler, and what it interrupted may hold the line to Airflow.
    thread = Thread(target=look, daemon=True)
    thread.start()
    thread.join(LOOKING)
    return bool(seen) and seen[0] not in GOES_ON


def _has_supervisor() -> bool:
    try:
        from airflow.sdk.execution_time import task_runner
    except ImportError:  # Airflow 2.11 asks its database
        return True
    return getattr(task_runner, "SUPERVISOR_COMMS", None) is not None


def _state(ti: Any) -> str | None:
    try:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    except ImportError:
        return _state_in_database(ti)
    index = getattr(ti, "map_index", -1)
    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=index
    )
    of_run = states.get(ti.run_id, {})
    key = ti.task_id if index in (None, -1) else f"{ti.task_id}_{index}"
    return of_run.get(key, DELETED)


def _state_in_database(ti: Any) -> str | None:
    """Airflow 2.11, where a triggerer may read the database."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(TaskInstance.state).filter(
            TaskInstance.dag_id == ti.dag_id,
            TaskInstance.run_id == ti.run_id,
            TaskInstance.task_id == ti.task_id,
            TaskInstance.map_index == ti.map_index,
        )
        row = found.first()
        return row[0] if row else DELETED
