"""How a wait ends in a worker, the same for all tasks: a record, or the exception that Airflow understands."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_crew_provider.core.outcome import COMPLETED, PENDING, SEEN, Outcome
from airflow_crew_provider.core.polling import FORGIVEN, Watch
from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewConnectionError,
    CrewError,
    CrewExecutionFailed,
    CrewInvalidInput,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
    CrewWebPage,
)
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution

# By how many seconds Airflow's own timeouts come after the deadline of a watch.
NET = 600.0


class CrewTaskFailed(AirflowFailException):
    """A task fails without further tries, since trying again cannot help; the message says what happened."""


def is_final(error: CrewError) -> bool:
    """Whether the same request will be refused again."""
    if isinstance(error, CrewConnectionError):
        return error.permanent
    if isinstance(error, CrewApiError):
        return not isinstance(error, CrewServerError | CrewRateLimited)
    return isinstance(error, CrewInvalidInput | CrewExecutionFailed | CrewWebPage)


def fail_task(error: CrewError, what_now: str = "") -> NoReturn:
    """Raise for Airflow: final errors end the task, others leave it to the task's retries."""
    message = f"{error}. {what_now}".removesuffix(". ") if what_now else str(error)
    raise CrewTaskFailed(message) if is_final(error) else AirflowException(message) from error


def seconds(value: Any, name: str = "a time") -> float | None:
    """Return a time that a user gave, in seconds: a number, a number as text or a timedelta; None stays None.

    :param name: of the argument, for the message
    :raises CrewInvalidInput: it is none of these
    """
    if value is None:
        return None
    try:
        given = value.total_seconds() if isinstance(value, timedelta) else float("nan" if value is True else value)
    except (TypeError, ValueError):
        given = float("nan")
    if 0 <= given < float("inf"):
        return given
    raise CrewInvalidInput(f"{name} must be a number of seconds or a timedelta, not {value!r}. Nothing was sent")


def deadline_of(context: Any, timeout: Any, execution_timeout: timedelta | None) -> float | None:
    """Return the point in time (epoch seconds) at which a wait must end: its own timeout, or the task's.

    Airflow 3 does not apply `execution_timeout` to a task while it is deferred, so the wait does.
    """
    now = time.time()
    own = seconds(timeout, "timeout")
    ends = [now + own] if own is not None else []
    if execution_timeout is not None:
        started = getattr(context["ti"], "start_date", None)
        began = started.timestamp() if isinstance(started, datetime) else now
        ends.append(began + execution_timeout.total_seconds())
    return min(ends, default=None)


def fallback_timeout(deadline: float | None) -> timedelta | None:
    """Return Airflow's own timeout for a deferral, a fallback well after the deadline in case no triggerer runs."""
    return None if deadline is None else timedelta(seconds=max(0.0, deadline - time.time()) + NET)


def fate_of_stop(kickoff_id: str, stopped: bool | CrewError | None) -> str:
    """Return what became of an execution: stopped or not, a failed stop, or (None) no stop was requested."""
    if stopped is None:
        return f"Execution {kickoff_id} is not stopped and may go on at the service"
    if isinstance(stopped, CrewError):
        return f"Execution {kickoff_id} could not be stopped ({stopped}) and may go on at the service"
    if stopped:
        return f"Execution {kickoff_id} was stopped"
    return f"Execution {kickoff_id} could not be stopped: the service does not do it, or it is over already"


def ended(hook: CrewHook, watch: Watch, outcome: Outcome) -> Execution | None:
    """Return the execution that an outcome is about; None if it went on meanwhile.

    The execution of a trigger event is polled again here, where results may be large. The first terminal
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
        answered=watch.answered,
    )
    second = hook.wait(again)
    if second.kind == SEEN:
        return None
    if second.kind in (COMPLETED, PENDING):
        return again.last
    raise CrewProtocolError(
        f"Execution {watch.kickoff_id} was seen {outcome.kind}, but its result could not be fetched: {second.message}"
    )
