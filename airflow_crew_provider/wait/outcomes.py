"""The end of a wait in a worker, for all tasks: an execution, an exception that Airflow understands, or a stop.

A wait is cancelled when a user ends its task, but also when its process exits and the wait continues elsewhere; only
the former stops an execution. A task resumed by a webhook is no longer waiting either, but its execution must not be
stopped. The next try of a cleared task decides what happens to its execution.

An expected failure is reported in one sentence, which Airflow prints without our stack frames (`ends_in_a_sentence`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from functools import wraps
from threading import Thread
from typing import Any, NoReturn, TypeVar

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    get_current_context,
)
from asgiref.sync import sync_to_async

from airflow_crew_provider import exceptions
from airflow_crew_provider.api.budget import used_in
from airflow_crew_provider.compat.supervisor import (
    AirflowRescheduleException,
    AirflowTaskTimeout,
    runs_in_worker,
    task_state,
)
from airflow_crew_provider.models import OVER, Execution, shown
from airflow_crew_provider.wait.narrator import Narrator, in_few_words
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.watch import (
    COMPLETED,
    FORGIVEN,
    PENDING,
    TIMEOUT,
    Outcome,
    Reply,
    Watch,
    is_transient,
)

# Seconds between a watch's deadline and Airflow's own timeouts.
NET = 600.0


class CrewTaskFailed(AirflowFailException):
    """Raised to fail a task without further tries, because a retry would not help; the message gives the reason."""


class CrewAnswerNotTaken(CrewTaskFailed):
    """The answer changed nothing; the current draft or question needs another answer.

    A task that asks people itself goes on, and asks again if it is still needed.

    :param fact: what happened
    :param advice: what to do if the task ends here
    """

    def __init__(self, fact: str, advice: str = "") -> None:
        super().__init__(f"{fact}; {advice}" if advice else fact)
        self.fact = fact


class CrewTryFailed(AirflowException):
    """Raised to fail a try when a retry may succeed; the message gives the reason.

    Retry policies match an error by its class. So if a `CrewError` is the reason, the error with which the task ends is
    an instance of both classes and has the attributes of the `CrewError` (`ends_in_a_sentence`).

    :param fact: what happened
    :param advice: what a retry does
    """

    def __init__(self, fact: str = "", advice: str = "") -> None:
        super().__init__(f"{fact}. {advice}" if advice else fact)
        self.fact = fact

    def become(self, reason: exceptions.CrewError) -> None:
        """Also become an instance of the reason's class. The object stays the same, so that no stack frame is added."""
        self.__dict__ = {**vars(reason), **vars(self)}
        self.__class__ = _failed_try_like(type(reason))


_FAILED_TRIES: dict[type[exceptions.CrewError], type[CrewTryFailed]] = {}


def _failed_try_like(kind: type[exceptions.CrewError]) -> type[CrewTryFailed]:
    def words(error: CrewTryFailed) -> str:
        return str(error.args[0])

    def reduced(error: CrewTryFailed) -> tuple[Any, ...]:
        return _failed_again, (kind, error.args, vars(error))

    if kind not in _FAILED_TRIES:
        # Under the name of the class that it replaces, Airflow logs and serializes it.
        members = {"__str__": words, "__reduce__": reduced, "__module__": __name__, "__doc__": CrewTryFailed.__doc__}
        _FAILED_TRIES[kind] = type(CrewTryFailed.__name__, (CrewTryFailed, kind), members)
    return _FAILED_TRIES[kind]


def _failed_again(kind: type[exceptions.CrewError], args: tuple[Any, ...], attributes: dict[str, Any]) -> CrewTryFailed:
    """Return an unpickled error."""
    error = CrewTryFailed(*args)
    error.__dict__.update(attributes)
    error.__class__ = _failed_try_like(kind)
    return error


EXPECTED = (exceptions.CrewError, CrewTaskFailed, CrewTryFailed, AirflowSensorTimeout)
Entry = TypeVar("Entry", bound=Callable[..., Any])


def ends_in_a_sentence(entry: Entry) -> Entry:
    """Make a method that Airflow calls report expected errors in one sentence, without causes or our stack frames.

    By default, Airflow prints both with every error. Unexpected errors, which are bugs, keep them. The original error
    is kept as ``reason``, for callbacks. The task has then ended (``has_ended``, ``end_of_try``), as it has after a
    result; Airflow may still kill its process if a callback is slow.
    """

    @wraps(entry)
    def call(task: Any, *args: Any, **kwargs: Any) -> Any:
        task.has_ended = False
        try:
            result = entry(task, *args, **kwargs)
        except AirflowRescheduleException:  # the try goes on
            raise
        except Exception as error:  # not a deferral or a kill
            task.has_ended = True
            _end_try(task, error)
            if not isinstance(error, EXPECTED):
                raise
            reason = error.reason = error.__cause__ or getattr(error, "reason", None)  # type: ignore[union-attr]
            error.__traceback__ = error.__cause__ = error.__context__ = None
            _name_place(error, task)
            if isinstance(error, CrewTryFailed) and isinstance(reason, exceptions.CrewError):
                error.become(reason)
            raise  # without an argument, so that it adds no frame
        task.has_ended = True
        _end_try(task, None)
        return result

    return call  # type: ignore[return-value]


def _end_try(task: object, error: Exception | None) -> None:
    """Let a task do what remains once its try has ended by itself, with this error."""
    if (end := getattr(task, "end_of_try", None)) is not None:
        end(error)


def _name_place(error: Exception, task: object) -> None:
    """Add the connection and its base URL to the end of the sentence, if the task has used the connection."""
    hook = getattr(task, "_hook", None)
    if hook is not None and not isinstance(error, exceptions.CrewError) and hook.place not in str(error):
        error.args = (f"{str(error).removesuffix('.')}. {hook.place}",)


def is_final(error: exceptions.CrewError) -> bool:
    """Return whether the same request would be refused again."""
    if isinstance(error, exceptions.CrewConnectionError | exceptions.CrewApiError):
        return not is_transient(error)
    return isinstance(error, exceptions.CrewInvalidInput | exceptions.CrewExecutionFailed)


def fail_task(error: exceptions.CrewError, what_now: str = "") -> NoReturn:
    """Raise an error as an Airflow exception: a final one fails the task; for others, the task's retries apply."""
    what_now = what_now.removesuffix(". ")
    if is_final(error):
        raise CrewTaskFailed(f"{error}. {what_now}" if what_now else str(error)) from error
    raise CrewTryFailed(str(error), what_now) from error


# --- times ---


def seconds(value: Any, name: str = "a time") -> float | None:
    """Convert a time given by the user (a number, a numeric string or a timedelta) to seconds; None stays None.

    :param name: the name of the argument, for the message
    :raises CrewInvalidInput: the value is not a valid time
    """
    if value is None:
        return None
    try:
        number = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if 0 <= number < float("inf") and not isinstance(value, bool):
        return number
    raise exceptions.CrewInvalidInput(
        f"{name} must be a number of seconds or a timedelta, not {shown(value)}. Nothing was sent"
    )


def deadline_of(context: Any, timeout: Any, execution_timeout: timedelta | None) -> float | None:
    """Return when a wait must end, in epoch seconds: at its own timeout or the task's, whichever is first.

    Airflow 3 does not apply `execution_timeout` to a deferred task, so the wait does.
    """
    now = time.time()
    own = seconds(timeout, "timeout")
    ends = [now + own] if own is not None else []
    if execution_timeout is not None:
        ends.append(began(context) + execution_timeout.total_seconds())
    return min(ends, default=None)


def began(context: Any) -> float:
    """Return when the try began, in epoch seconds."""
    started = getattr(context["ti"], "start_date", None)
    return started.timestamp() if isinstance(started, datetime) else time.time()


def fallback_timeout(deadline: float | None) -> timedelta | None:
    """Return Airflow's own timeout for a deferral, well after the deadline: a fallback in case no triggerer runs."""
    return None if deadline is None else timedelta(seconds=max(0.0, deadline - time.time()) + NET)


# --- the end of an execution ---


def ended(poller: Poller, watch: Watch, outcome: Outcome) -> Execution | Outcome:
    """Return an outcome's execution, or the present outcome of one that is no longer waiting for a person.

    After a trigger event, the execution is polled again here, where results may be large. The first terminal state
    is final: if the service no longer reports `completed`, the execution is polled until it does so again.
    """
    last = watch.progress.last
    if last is not None and str(last.state) == outcome.kind:
        return last
    again = Watch(
        kickoff_id=watch.kickoff_id,
        started=time.time(),
        deadline=time.time() + FORGIVEN,
        poll_interval=min(watch.poll_interval, 5.0),
        wait_past_pending=outcome.kind == COMPLETED,
        report_seen=outcome.kind == PENDING,
        answered=watch.answered,
        narrator=Narrator(None),
    )
    second = poller.wait(again)
    if second.kind in (COMPLETED, PENDING):
        assert again.progress.last
        return again.progress.last
    if outcome.kind == PENDING and second.kind != TIMEOUT:  # which is this poll's deadline, not the wait's
        return second
    raise exceptions.CrewProtocolError(
        f"Execution {watch.kickoff_id} was seen as {outcome.kind}, but its result could not be fetched: "
        f"{second.message}"
    )


def is_over(reply: Reply) -> bool:
    """Return whether an execution has ended; "not found" may mean that it is waiting for a person (live dialect)."""
    return isinstance(reply, Execution) and reply.state in OVER


MOST_AGENTS = 5


def in_short(execution: Execution, page: str) -> str:
    """Return a log line about a completed execution; omit anything that the service does not report.

    :param page: the URL of the execution's page; empty if it has none
    """
    agents = list(dict.fromkeys(in_few_words(task.agent) for task in execution.tasks if task.agent))
    named = ", ".join(agents[:MOST_AGENTS]) + (" and others" if len(agents) > MOST_AGENTS else "")
    count = len(execution.tasks)
    parts = [
        f"{execution.execution_time:,.1f} s of work" if execution.execution_time is not None else "",
        f"{count} {'task' if count == 1 else 'tasks'}{f' by {named}' if named else ''}" if count else "",
        *used_in(execution.usage),
        f"an output of {len(execution.output or ''):,} characters",
    ]
    sentence = f"Execution {execution.kickoff_id} has completed: {', '.join(part for part in parts if part)}"
    return f"{sentence}. {page}" if page else sentence


# --- why a wait is cancelled ---


States = Collection[str | None]
# The states of a task that still needs its execution: waiting for it or for a person, about to fetch its result, or
# (None) cleared. A task cleared while it is running is "restarting" instead, and its next try looks like a retry. A
# kickoff, which must then start over, has to stop its execution, but a sensor waits for the same one again.
GOES_ON: States = (
    "deferred",
    "scheduled",
    "queued",
    "running",
    "awaiting_input",
    "up_for_retry",
    "up_for_reschedule",
    None,
)
WAITS_AGAIN: States = (*GOES_ON, "restarting")
STOPPING = 40.0  # seconds; a stop may take 30, and its result is only then logged
LOG_TURNS = 5  # of Airflow's triggerer, which reads 4 KiB of its triggers' log lines in each
LOOKUP_SECONDS = 2.0  # of the five that Airflow gives a process between asking and forcing it to end


async def to_its_end(work: Awaitable[None], seconds: float = STOPPING) -> None:
    """Finish handling a kill, although Airflow 3.3 cancels the trigger again about once a second."""
    clock = asyncio.get_running_loop().time
    task, ends = asyncio.ensure_future(work), clock() + seconds
    while not task.done() and clock() < ends:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=ends - clock())


async def until_log_is_read(trigger: Any) -> None:
    """Give Airflow's triggerer turns to read a trigger's last line before it hears that the trigger has ended.

    It takes log lines and requests in turn, from two sockets, and writes lines that it reads after the end to its own
    output instead of the task's log. While it is busy, a burst of other lines is enough for that.
    """
    for _ in range(LOG_TURNS if trigger.task_instance is not None else 0):
        with suppress(Exception):
            await sync_to_async(task_state)(trigger.task_instance)


async def is_by_user(
    trigger: Any, *, without_task: bool, was_woken: Callable[[], Coroutine[Any, Any, bool]] | None = None
) -> bool:
    """Return whether a user ended the trigger's task, i.e. it is in none of the states in which it continues.

    :param without_task: the result for a trigger that runs outside a triggerer, without a task
    :param was_woken: returns whether something other than this trigger may have resumed the task, which then succeeded
    """
    ti = trigger.task_instance
    if ti is None:
        return without_task
    try:
        state = await sync_to_async(task_state)(ti)
    except Exception:
        trigger.log.warning("The task's state could not be looked up; the execution is not stopped", exc_info=True)
        return False
    if state == "success" and was_woken is not None and await was_woken():
        return False
    return state not in GOES_ON


class Ending(StrEnum):
    """Why a task has ended for good in a worker, so that its execution may be stopped."""

    TIMEOUT = "timeout"  # its execution timeout
    CLEARED = "cleared"  # a user cleared it while it was running
    ENDED = "ended"  # a user ended it, or it runs outside a worker and has no next try
    UNKNOWN = "unknown"  # Airflow has not answered yet


def ending_of(ti: Any, goes_on: States = GOES_ON, *, has_ended: bool = False, in_handler: bool = True) -> Ending | None:
    """Return why a task ended in a worker; None if it is in a state in which it continues.

    A worker that shuts down, or whose task could not reach Airflow for a while, kills the task in the same way, but
    the next try then reattaches to the execution. A task that runs outside a worker has no next try.

    :param has_ended: whether the task ended by itself, so that a worker kills it only because its callbacks are slow
    :param in_handler: whether this may run in a signal handler, which must return
    """
    with suppress(Exception):  # a task may be killed before its `execute` is called
        ti = ti or get_current_context()["ti"]
    if isinstance(sys.exc_info()[1], AirflowTaskTimeout):  # an exception, so this handler has interrupted nothing
        return Ending.TIMEOUT
    if ti is None or not runs_in_worker(ti):
        return Ending.ENDED
    if has_ended:
        return None
    states: list[str | None] = []

    def look_up() -> None:
        try:
            states.append(task_state(ti))
        except Exception:
            states.append(None)  # a task that cannot reach Airflow is killed, too

    # In a thread, for a limited time: a signal handler may have interrupted code that holds the connection to Airflow.
    thread = Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(LOOKUP_SECONDS if in_handler else None)
    if not states:
        return Ending.UNKNOWN
    if states[0] in goes_on:
        return None
    return Ending.CLEARED if states[0] == "restarting" else Ending.ENDED
