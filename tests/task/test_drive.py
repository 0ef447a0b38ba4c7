"""The loop that runs a task's steps, and the steps of a wait, taken by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.api.budget import NO_BUDGET, Budget
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewExecutionFailed, CrewTimeout
from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.task.drive import Defer, Fetch, Pause, PollOnce, PollUntilOver, Steps, drive
from airflow_crew_provider.task.waiting import CrewOverBudget, Wait
from airflow_crew_provider.wait.outcomes import CrewTryFailed
from airflow_crew_provider.wait.watch import (
    COMPLETED,
    FAILED,
    GAVE_UP,
    OVER_BUDGET,
    PENDING,
    SEEN,
    TIMEOUT,
    Outcome,
    Watch,
)


class Done(list[Any]):
    """A worker, as the steps that it has done."""

    def save(self) -> None:
        self.append("saved")


@dataclass
class Does:
    """A step that does what a test says."""

    what: Callable[[], Any]

    def do(self, worker: Any) -> Any:
        worker.append(self)
        return self.what()


def raises(error: BaseException) -> Does:
    def do() -> None:
        raise error

    return Does(do)


# --- the loop ---


def test_each_step_is_done_in_the_worker_and_its_result_comes_back() -> None:
    first, second, worker = Does(lambda: 1), Does(lambda: 2), Done()

    def steps() -> Steps[list[int]]:
        return [(yield first), (yield second)]

    assert drive(steps(), worker) == [1, 2]
    assert worker == ["saved", first, "saved", second, "saved"]


def test_what_failing_steps_have_changed_is_on_record_too() -> None:
    worker = Done()

    def steps() -> Steps[None]:
        raise CrewConnectionError("away")
        yield

    with pytest.raises(CrewConnectionError):
        drive(steps(), worker)
    assert worker == ["saved"]


def test_a_step_whose_record_cannot_be_stored_is_not_done() -> None:
    class Full(Done):
        def save(self) -> None:
            raise CrewConnectionError("full")

    def steps() -> Steps[str]:
        try:
            yield Does(lambda: "sent")
        except CrewConnectionError as error:
            raise CrewTryFailed(f"{error}; nothing was sent") from error
        return "sent"

    worker = Full()
    with pytest.raises(CrewConnectionError, match="full"):
        drive(steps(), worker)
    assert worker == []


def test_an_error_is_raised_where_its_step_was_yielded_and_the_steps_may_go_on() -> None:
    refused = CrewConnectionError("away")

    def steps() -> Steps[Any]:
        try:
            yield raises(refused)
        except CrewError as error:
            return error, (yield Does(lambda: "afterwards"))

    assert drive(steps(), Done()) == (refused, "afterwards")


@pytest.mark.parametrize("end", [KeyboardInterrupt(), CrewConnectionError("away")])
def test_an_error_that_no_step_handles_ends_the_task_as_a_kill_does(end: BaseException) -> None:
    left: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield raises(end)
        finally:
            left.append("cleaned up")

    with pytest.raises(type(end)):
        drive(steps(), Done())
    assert left == ["cleaned up"]


# --- a wait ---


@dataclass
class Task:
    """The parts of a task on which its wait depends."""

    deferrable: bool = True
    poll_in_worker: float = 0.0
    crew_conn_id: str = "crew_default"
    cancel_on_kill: bool = True
    budget: Budget = NO_BUDGET
    watched_budget: Budget = NO_BUDGET
    multiple_outputs: bool = True
    reported: list[Any] = field(default_factory=list)

    def report(self, context: Any, state: ExecutionState, kickoff_id: str, **more: Any) -> None:
        self.reported.append(state)


def wait(task: Task, **watch: Any) -> Any:
    log = SimpleNamespace(info=lambda *_: None)
    hook: Any = SimpleNamespace(
        crew_conn_id="crew_default", connection=SimpleNamespace(link=lambda *_: ""), mask_for_log=str, log=log
    )
    worker: Any = SimpleNamespace(hook=hook, log=log, context={})
    return Wait(task, worker, Watch(kickoff_id="k-1", started=0.0, **watch))  # type: ignore[arg-type]


def execution(state: ExecutionState, **more: Any) -> Execution:
    return Execution(kickoff_id="k-1", state=state, raw_state=str(state), **more)


def test_a_wait_polls_once_and_defers_with_what_the_resumed_task_needs() -> None:
    steps = wait(Task(), deadline=60.0).begin()
    assert isinstance(next(steps), PollOnce)
    deferred = steps.send(None)
    assert isinstance(deferred, Defer)
    waiting = {"started": 0.0, "deadline": 60.0, "ended": 0, "kickoff_id": "k-1", "inbox": None}
    assert deferred.kwargs == {"waiting": waiting}
    assert deferred.trigger.kickoff_id == "k-1"


def test_a_wait_that_is_not_deferrable_stays_in_its_worker() -> None:
    steps = wait(Task(deferrable=False)).begin()
    assert isinstance(next(steps), PollUntilOver)
    assert isinstance(steps.send(Outcome(COMPLETED, "k-1")), Fetch)


def test_a_poll_in_the_worker_is_repeated_before_the_deferral() -> None:
    waiting = wait(Task(poll_in_worker=1e12), poll_interval=30.0)
    steps = waiting.begin()
    assert isinstance(next(steps), PollOnce)
    pause = steps.send(None)
    assert isinstance(pause, Pause)
    assert isinstance(steps.send(None), PollOnce)
    assert isinstance(steps.send(Outcome(COMPLETED, "k-1")), Fetch)
    assert waiting.watch.poll_interval == 30.0


@pytest.mark.parametrize("state", [ExecutionState.COMPLETED, ExecutionState.PENDING])
def test_a_wait_ends_with_the_execution_that_was_fetched(state: ExecutionState) -> None:
    task, seen = Task(), execution(state)
    steps = wait(task).ended(Outcome(str(state), "k-1"))
    assert isinstance(next(steps), Fetch)
    with pytest.raises(StopIteration) as end:
        steps.send(seen)
    assert (end.value.value, task.reported, task.multiple_outputs) == (seen, [state], False)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome(FAILED, "k-1", "no ink"), CrewExecutionFailed),
        (Outcome(FAILED, "k-1", "no ink", usage={"total_tokens": 9}), CrewOverBudget),
        (Outcome(OVER_BUDGET, "k-1", usage={"total_tokens": 9}), CrewOverBudget),
        (Outcome(TIMEOUT, "k-1", "too late"), CrewTimeout),
        (Outcome(GAVE_UP, "k-1", "away"), CrewTryFailed),
    ],
    ids=lambda given: getattr(given, "kind", None) or getattr(given, "__name__", None),
)
def test_a_wait_without_a_result_leaves_the_decision_to_its_task(outcome: Outcome, error: type[Exception]) -> None:
    task = Task(budget=Budget(5), watched_budget=Budget(5))
    with pytest.raises(error):
        next(wait(task).ended(outcome))


@pytest.mark.parametrize("outcome", [Outcome(SEEN, "k-1"), Outcome(OVER_BUDGET, "k-1", usage={"total_tokens": 9})])
def test_an_outcome_that_ends_nothing_continues_the_wait(outcome: Outcome) -> None:
    """A limit that has been raised since the trigger fired is no longer exceeded."""
    steps = wait(Task(budget=Budget(50), watched_budget=Budget(50))).ended(outcome)
    deferred = next(steps)
    assert isinstance(deferred, Defer)
    assert deferred.trigger.known is True


def test_an_execution_that_has_continued_meanwhile_is_waited_for_again() -> None:
    steps = wait(Task()).ended(Outcome(PENDING, "k-1"))
    assert isinstance(next(steps), Fetch)
    assert isinstance(steps.send(None), Defer)


def test_a_question_that_the_wait_passes_goes_to_the_task_without_a_report() -> None:
    task, asked = Task(), execution(ExecutionState.PENDING)
    steps = wait(task, wait_past_pending=True).ended(Outcome(PENDING, "k-1"))
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(asked)
    assert (end.value.value, task.reported) == (asked, [])
