"""How a wait ends in a worker, the same for all tasks: a record, or the exception that Airflow understands."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, conf

from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewConnectionError,
    CrewError,
    CrewExecutionFailed,
    CrewInvalidInput,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
)
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution
from airflow_crew_provider.waiting import COMPLETED, FORGIVEN, PENDING, SEEN, Outcome, Watch

# By how many seconds Airflow's own timeouts come after the deadline of a watch.
NET = 600.0

# How many seconds a task that has left its worker stays away. One that is queued again before the scheduler has read
# the end of its last visit is failed by Airflow as if it had ended without a word (seen on 3.3.2). A supervisor may
# notice the end of its task process as late as its next heartbeat; the rest is for the scheduler's own turn.
SETTLED_AFTER = conf.getint("workers", "min_heartbeat_interval", fallback=5) + 3.0


class CrewTaskFailed(AirflowFailException):
    """A task fails without further tries, since trying again cannot help; the message says what happened."""


def is_final(error: CrewError) -> bool:
    """Whether the same request will be refused again."""
    if isinstance(error, CrewConnectionError):
        return error.permanent
    if isinstance(error, CrewApiError):
        return not isinstance(error, CrewServerError | CrewRateLimited)
    return isinstance(error, CrewInvalidInput | CrewExecutionFailed)


def fail_task(error: CrewError, what_now: str = "") -> NoReturn:
    """Raise for Airflow: final errors end the task, others leave it to the task's retries."""
    message = f"{error}. {what_now}".removesuffix(". ") if what_now else str(error)
    raise CrewTaskFailed(message) if is_final(error) else AirflowException(message) from error


def seconds(value: float | timedelta | None) -> float | None:
    """Return a time that a user gave, in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def deadline_of(context: Any, timeout: float | timedelta | None, execution_timeout: timedelta | None) -> float | None:
    """Return the point in time (epoch seconds) at which a wait must end: its own timeout, or the task's.

    Airflow 3 does not apply `execution_timeout` to a task while it is deferred, so the wait does.
    """
    now = time.time()
    own = seconds(timeout)
    ends = [now + own] if own is not None else []
    if execution_timeout is not None:
        started = getattr(context["ti"], "start_date", None)
        began = started.timestamp() if isinstance(started, datetime) else now
        ends.append(began + execution_timeout.total_seconds())
    return min(ends, default=None)


def net_beneath(deadline: float | None) -> timedelta | None:
    """Return Airflow's own timeout for a deferral: well after the deadline, in case no triggerer runs."""
    return None if deadline is None else timedelta(seconds=max(0.0, deadline - time.time()) + NET)


def fate_of_stop(kickoff_id: str, stopped: bool | CrewError | None) -> str:
    """Tell what became of an execution: stopped or not, a stop that went wrong, or (None) none was asked for."""
    if stopped is None:
        return f"Execution {kickoff_id} is not stopped and may go on at the service"
    if isinstance(stopped, CrewError):
        return f"Execution {kickoff_id} could not be stopped ({stopped}) and may go on at the service"
    if stopped:
        return f"Execution {kickoff_id} was stopped"
    return f"Execution {kickoff_id} could not be stopped: the service does not do it, or it is over already"


def ended(hook: CrewHook, watch: Watch, outcome: Outcome) -> Execution | None:
    """Return the execution that an outcome tells of; None if it went on meanwhile.

    What travelled in a trigger event is looked at again here, where results may be large. The first terminal
    answer counts: a service that takes `completed` back is asked until it says so again.
    """
    if watch.last is not None and str(watch.last.state) == outcome.kind:
        return watch.last
    again = Watch(
        kickoff_id=watch.kickoff_id,
        started=time.time(),
        deadline=time.time() + FORGIVEN,
        poll_interval=min(watch.poll_interval, 5.0),
        wait_past_pending=outcome.kind == COMPLETED,
        report_seen=outcome.kind == PENDING,
    )
    second = hook.wait(again)
    if second.kind == SEEN:
        return None
    if second.kind in (COMPLETED, PENDING):
        return again.last
    raise CrewProtocolError(
        f"Execution {watch.kickoff_id} was seen {outcome.kind}, but its result could not be fetched: {second.message}"
    )
