"""The loop that runs a task's steps in a worker.

Steps are generators: they decide, and yield each thing to be done, such as a poll, a POST, a pause or a deferral. The
loop does it and sends the result back; an error is raised where the step was yielded. So steps read like ordinary code,
and a test can walk through them without a network, a pause or Airflow.

Nothing is done before it is on record: what the steps have changed in the task's record is stored in one write before
the next thing is done, and at their end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_crew_provider.api.endpoints import Call
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.models import Execution, Json
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.store import NoRecord, record_of
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.poller import Poller, Source
from airflow_crew_provider.wait.watch import Outcome, Reply, Watch, fate_of_stop

T = TypeVar("T")
NOTHING_FOLLOWS = "nothing follows a deferral"
WHAT_NOW = "A retry would fail too; raise the limit, or make the crew use less, and clear the kickoff to start again"


class Step(Protocol):
    """Something to be done in a worker."""

    def do(self, worker: Worker) -> Any:
        """Do it, and return what came of it."""


Steps = Generator[Step, Any, T]


def drive(steps: Steps[T], worker: Any) -> T:
    """Take the steps to their end and return their result.

    :param worker: does each step; if the steps do not reach the service, the task's record is enough
    """
    reply: Any = None
    problem: BaseException | None = None
    while True:
        try:
            step = steps.send(reply) if problem is None else steps.throw(problem)
        except StopIteration as end:
            worker.save()
            result: T = end.value
            return result
        except Exception:
            worker.save()
            raise
        reply = problem = None
        try:
            worker.save()
            reply = step.do(worker)
        except BaseException as error:  # a deferral or a kill, too, as from any other call
            problem = error


class Worker:
    """A worker that runs one try of a task, or a part of it between two deferrals.

    :param context: the try's context; None before Airflow has passed it
    :param source: where the execution may ask questions, besides its status
    """

    def __init__(self, hook: ConnectedCrew, log: Any, context: Any = None, source: Source | None = None) -> None:
        self.hook, self.log, self.context = hook, log, context
        self.record = record_of(context) if context else NoRecord()
        self.read_also(source)
        self._stopping: str | None = None  # the execution whose stop was interrupted or failed

    def read_also(self, source: Source | None) -> None:
        """Make all polls also read this source of questions, or only the status."""
        self.poller = Poller(self.hook, source)

    def drive(self, steps: Steps[T]) -> T:
        """Take the steps to their end and return their result."""
        return drive(steps, self)

    def save(self) -> None:
        """Store what has changed in the task's record."""
        self.record.save()

    @property
    def is_last_try(self) -> bool:
        """Whether no retry follows this try, as far as is known."""
        return self.context is not None and Attempt.of(self.context, None).is_last

    @staticmethod
    def pause(seconds: float) -> None:
        """Pause."""
        time.sleep(seconds)

    def stop(self, kickoff_id: str, *, is_last: bool = False) -> bool | CrewError:
        """Try to stop an execution; return whether it was stopped, or the error.

        The task's execution timeout may interrupt a stop that the wait's own timeout requested, and then request it
        again. The service refuses the second one, although the first one worked.

        :param is_last: whether no later try stops it, so that this one must be patient
        """
        was_interrupted, self._stopping = self._stopping == kickoff_id, kickoff_id
        request = partial(self.hook.stop, kickoff_id)
        warn = partial(self.log.warning, "Execution %s could not be stopped yet: %s", kickoff_id)
        try:
            stopped = self.poller.patiently(kickoff_id, request, warn) if is_last else request()
        except CrewError as error:
            return error
        if not stopped and was_interrupted:
            reply = self.poller.poll(kickoff_id)
            return isinstance(reply, Execution) and reply.has_failed
        self._stopping = None
        return stopped

    def fail_over_budget(self, kickoff_id: str, passed: str) -> NoReturn:
        """Stop an execution that exceeded its budget, and fail for good.

        :param passed: a description of the limits that it exceeded
        """
        stopped = self.stop(kickoff_id, is_last=True)
        after = self.poller.poll(kickoff_id) if stopped is False else None
        fate = fate_of_stop(kickoff_id, stopped, after)
        raise outcomes.CrewTaskFailed(f"Execution {kickoff_id} {passed}. {fate}. {WHAT_NOW}")

    def stop_if_ended(
        self,
        kickoff_id: str,
        stops: Callable[[outcomes.Ending], bool],
        goes_on: outcomes.States = outcomes.GOES_ON,
        *,
        has_ended: bool,
    ) -> None:
        """Stop the execution of a task that was killed for good, if the task wants that; log its fate either way.

        :param stops: returns whether a task that has ended for this reason stops its execution; records it first
        :param has_ended: whether the task has returned or failed
        """
        ending_of = partial(
            outcomes.ending_of, self.context["ti"] if self.context else None, goes_on, has_ended=has_ended
        )

        def stop_for(ending: outcomes.Ending | None) -> None:
            is_last = ending is outcomes.Ending.TIMEOUT and self.is_last_try
            stopped = self.stop(kickoff_id, is_last=is_last) if ending is not None and stops(ending) else None
            self.log.info("The task was killed. %s", fate_of_stop(kickoff_id, stopped))

        ending = ending_of()
        if ending is not outcomes.Ending.UNKNOWN:
            stop_for(ending)
            return
        # The interrupted code holds the connection to Airflow, and releases it once this handler has returned. Airflow
        # then gives the process a few more seconds.
        Thread(target=lambda: stop_for(ending_of(in_handler=False)), daemon=True).start()


# --- steps of all tasks ---


class Do:
    """The call of a function that does something outside; the result is the function's."""

    def __init__(self, function: Callable[..., Any], *given: Any, **named: Any) -> None:
        self._call = partial(function, *given, **named)

    def do(self, worker: Any) -> Any:
        return self._call()


@dataclass(frozen=True)
class Poll:
    """One status request; the result is an `Execution` or a `CrewError`."""

    kickoff_id: str
    timeout: float | None = None  # seconds

    def do(self, worker: Worker) -> Reply:
        return worker.poller.poll(self.kickoff_id, self.timeout)


@dataclass(frozen=True)
class PollPatiently:
    """Status requests until one shows the state; the result and the errors are those of `Poller.poll_patiently`."""

    kickoff_id: str

    def do(self, worker: Worker) -> Execution:
        return worker.poller.poll_patiently(self.kickoff_id)


@dataclass(frozen=True)
class Get(Generic[T]):
    """Another request that changes nothing; the result is the value of its response."""

    call: Call[T]
    timeout: float | None = None  # seconds

    def do(self, worker: Worker) -> T:
        return worker.hook.client.send(self.call, timeout=self.timeout)


@dataclass(frozen=True)
class PollOnce:
    """One poll of a wait; the result is its outcome, or None if it continues."""

    watch: Watch

    def do(self, worker: Worker) -> Outcome | None:
        return worker.poller.poll_once(self.watch)


@dataclass(frozen=True)
class PollUntilOver:
    """A wait in this worker; the result is its outcome."""

    watch: Watch

    def do(self, worker: Worker) -> Outcome:
        return worker.poller.wait(self.watch)


@dataclass(frozen=True)
class Fetch:
    """A request for the execution that ended a wait; the result is an `Outcome` if it has continued or failed since."""

    watch: Watch
    outcome: Outcome

    def do(self, worker: Worker) -> Execution | Outcome:
        return outcomes.ended(worker.poller, self.watch, self.outcome)


@dataclass(frozen=True)
class Pause:
    """A pause in seconds."""

    seconds: float

    def do(self, worker: Worker) -> None:
        worker.pause(self.seconds)


@dataclass(frozen=True)
class Stop:
    """A request to stop an execution; the result is whether it was stopped, or a `CrewError`."""

    kickoff_id: str
    is_last: bool = False

    def do(self, worker: Worker) -> bool | CrewError:
        return worker.stop(self.kickoff_id, is_last=self.is_last)


@dataclass(frozen=True)
class Defer:
    """A deferral to the triggerer, which frees the worker slot; nothing follows it in this worker.

    :param kwargs: further arguments of the method `execute_complete`, with which the task resumes
    """

    trigger: Any
    kwargs: Json
    timeout: timedelta | None

    def do(self, worker: Worker) -> NoReturn:
        raise TaskDeferred(
            trigger=self.trigger, method_name="execute_complete", kwargs=self.kwargs, timeout=self.timeout
        )
