"""What a worker does with a stop, with a task that was killed, and with each step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import Queue
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from simulated_airflow import tell_states

from airflow_crew_provider.compat.supervisor import AirflowTaskTimeout
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError
from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.task import drive as drive_module
from airflow_crew_provider.task.drive import (
    Defer,
    Do,
    Fetch,
    Get,
    Pause,
    Poll,
    PollOnce,
    PollPatiently,
    PollUntilOver,
    Steps,
    Stop,
    Worker,
)
from airflow_crew_provider.task.store import NoRecord, TaskRecord
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.outcomes import Ending
from airflow_crew_provider.wait.watch import COMPLETED, Outcome, Watch
from scripts.stack.waiting import FACTOR, PATIENCE, wait_until

AWAY = CrewConnectionError("away")


class Log(list[str]):
    """What was logged, as lines."""

    def info(self, message: str, *given: object) -> None:
        self.append(message % given)

    warning = info


def seen(state: ExecutionState) -> Execution:
    return Execution(kickoff_id="k-1", state=state, raw_state=str(state))


class Hook:
    """The service: it answers stops and polls with what it was given, the last for good."""

    crew_conn_id = "crew_default"
    place = "the service"

    def __init__(self, stops: list[Any], poll: Any = None) -> None:
        self.stops, self.poll = stops, poll
        self.log, self.stopped, self.timeouts = Log(), list[str](), list[Any]()
        self.client = self

    def stop(self, kickoff_id: str) -> bool:
        self.stopped.append(kickoff_id)
        answer = self.stops.pop(0) if self.stops[1:] else self.stops[0]
        if isinstance(answer, BaseException):
            raise answer
        return bool(answer)

    def send(self, call: Any, *, timeout: float | None = None) -> Any:
        self.timeouts.append(timeout)
        if call.path != "/status/k-1":
            return call.path
        if isinstance(self.poll, CrewError):
            raise self.poll
        return self.poll

    def refresh(self, *, at_once: bool) -> bool:
        return False

    def mask_for_log(self, text: str) -> str:
        return text


def worker(*stops: Any, poll: Any = None, context: Any = None) -> Any:
    return Worker(Hook([*stops], poll), Log(), context)  # type: ignore[arg-type]


# --- stops ---


@pytest.mark.parametrize("answer", [True, False, AWAY], ids=repr)
def test_a_stop_tells_whether_it_worked(answer: Any) -> None:
    once = worker(answer)
    assert once.stop("k-1") is answer
    assert once.hook.stopped == ["k-1"]


@pytest.mark.parametrize(
    ("poll", "stopped"),
    [(seen(ExecutionState.ERROR), True), (seen(ExecutionState.RUNNING), False), (AWAY, False)],
    ids=["failed", "running", "away"],
)
def test_a_stop_refused_after_an_interruption_looks_again(poll: Any, stopped: bool) -> None:
    twice = worker(KeyboardInterrupt(), False, poll=poll)
    with pytest.raises(KeyboardInterrupt):
        twice.stop("k-1")
    assert twice.stop("k-1") is stopped


def test_a_stop_refused_at_once_needs_no_look() -> None:
    assert worker(False, poll=seen(ExecutionState.ERROR)).stop("k-1") is False


def test_a_stop_that_worked_interrupts_no_later_one() -> None:
    twice = worker(True, False, poll=seen(ExecutionState.ERROR))
    assert [twice.stop("k-1"), twice.stop("k-1")] == [True, False]


@pytest.mark.parametrize("first", [KeyboardInterrupt(), AWAY], ids=repr)
def test_an_unanswered_stop_says_nothing_of_another_execution(first: BaseException) -> None:
    twice = worker(first, False, poll=seen(ExecutionState.ERROR))
    with suppress(KeyboardInterrupt):
        twice.stop("k-0")
    assert twice.stop("k-1") is False


def test_an_accepted_stop_after_an_interrupted_one_needs_no_look() -> None:
    twice = worker(KeyboardInterrupt(), True, poll=seen(ExecutionState.RUNNING))
    with pytest.raises(KeyboardInterrupt):
        twice.stop("k-1")
    assert twice.stop("k-1") is True


@pytest.mark.parametrize(("is_last", "result"), [(False, AWAY), (True, True)])
def test_only_the_last_try_is_patient_with_a_stop(monkeypatch: pytest.MonkeyPatch, is_last: bool, result: Any) -> None:
    monkeypatch.setattr(outcomes.time, "sleep", lambda seconds: None)
    patient = worker(AWAY, True)
    assert Stop("k-1", is_last=is_last).do(patient) is result
    assert patient.log == (["Execution k-1 could not be stopped yet: away"] if is_last else [])


def test_a_stop_is_not_patient_unless_told() -> None:
    assert worker(AWAY, True).stop("k-1") is AWAY
    assert Stop("k-1").do(worker(AWAY, True)) is AWAY


# --- a task that was killed ---

TI = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let Airflow say a state of the task."""
    return lambda state: tell_states(monkeypatch, lambda task: state, SUPERVISOR_COMMS=object())


def always(ending: Ending) -> bool:
    return True


STOPPED, LEFT = "Execution k-1 was stopped", "Execution k-1 was not stopped and may still be active"


@pytest.mark.parametrize(
    ("state", "stops", "asked", "fate"),
    [
        ("failed", True, [Ending.ENDED], STOPPED),
        ("failed", False, [Ending.ENDED], LEFT),
        ("restarting", True, [Ending.CLEARED], STOPPED),
        ("running", True, [], LEFT),
    ],
)
def test_a_killed_task_stops_what_no_later_try_continues(
    says: Any, state: str, stops: bool, asked: list[Ending], fate: str
) -> None:
    says(state)
    killed, endings = worker(True, context={"ti": TI, "task_state_store": None}), []

    def asked_for(ending: Ending) -> bool:
        endings.append(ending)
        return stops

    killed.stop_if_ended("k-1", asked_for, has_ended=False)
    assert endings == asked
    assert killed.log == [f"The task was killed. {fate}"]
    assert killed.hook.stopped == (["k-1"] if fate == STOPPED else [])


def test_a_state_in_which_a_wait_goes_on_ends_nothing(says: Any) -> None:
    says("restarting")
    killed = worker(True, context={"ti": TI, "task_state_store": None})
    killed.stop_if_ended("k-1", always, outcomes.WAITS_AGAIN, has_ended=False)
    assert killed.log == [f"The task was killed. {LEFT}"]


def test_a_task_that_had_ended_by_itself_stops_nothing(says: Any) -> None:
    says("failed")
    killed = worker(True, context={"ti": TI, "task_state_store": None})
    killed.stop_if_ended("k-1", always, has_ended=True)
    assert killed.log == [f"The task was killed. {LEFT}"]


def test_a_task_outside_a_run_has_no_next_try() -> None:
    killed = worker(True)
    killed.stop_if_ended("k-1", always, has_ended=False)
    assert killed.log == [f"The task was killed. {STOPPED}"]


@pytest.mark.parametrize(("max_tries", "fate"), [(0, STOPPED), (1, f"Execution k-1 could not be stopped ({AWAY})")])
def test_only_the_last_try_at_its_timeout_is_patient(
    monkeypatch: pytest.MonkeyPatch, max_tries: int, fate: str
) -> None:
    monkeypatch.setattr(outcomes.time, "sleep", lambda seconds: None)
    ti = SimpleNamespace(**vars(TI), try_number=1, max_tries=max_tries)
    late, endings = worker(AWAY, True, context={"ti": ti, "task_state_store": None}), list[Ending]()
    try:
        raise AirflowTaskTimeout
    except AirflowTaskTimeout:
        late.stop_if_ended("k-1", lambda ending: endings.append(ending) is None, has_ended=False)
    assert endings == [Ending.TIMEOUT]
    assert late.log[-1].startswith(f"The task was killed. {fate}")


def test_a_try_without_a_context_counts_as_retried() -> None:
    assert worker(True).is_last_try is False


def test_a_state_that_airflow_tells_late_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "LOOKUP_SECONDS", 0.01)
    told, recorded = Event(), Queue[Ending]()

    def tell(task: str) -> str:
        told.wait(PATIENCE)
        return "failed"

    tell_states(monkeypatch, tell, SUPERVISOR_COMMS=object())
    killed = worker(True, context={"ti": TI, "task_state_store": None})

    def stops(ending: Ending) -> bool:
        recorded.put(ending)
        return True

    before = set(threading.enumerate())
    killed.stop_if_ended("k-1", stops, has_ended=False)
    assert (killed.log, recorded.empty()) == ([], True)
    started = set(threading.enumerate()) - before
    assert started
    assert all(each.daemon for each in started)
    time.sleep(0.1)  # longer than a handler waits
    told.set()
    assert recorded.get(timeout=10 * FACTOR) is Ending.ENDED
    wait_until(lambda: killed.log == [f"The task was killed. {STOPPED}"], "the end")


# --- steps ---


def test_a_worker_has_the_record_of_its_try() -> None:
    identity = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
    context = {"ti": SimpleNamespace(**identity), "task_state_store": object()}
    assert isinstance(worker(True).record, NoRecord)
    found = worker(True, context=context)
    assert isinstance(found.record, TaskRecord)
    assert (found.record.run, found.context) == ({"dag_id": "d", "run_id": "r"}, context)


class Asked:
    """A source of questions."""

    async def read(self, kickoff_id: str, reply: Any, *, blocking: bool) -> Any:
        return "a question"


def test_a_poll_reads_the_source_of_questions_too() -> None:
    running = seen(ExecutionState.RUNNING)
    both: Any = Worker(Hook([True], running), Log(), None, Asked())  # type: ignore[arg-type]
    assert both.drive(iter_of(Poll("k-1"))) == "a question"
    both.read_also(None)
    assert both.drive(iter_of(Poll("k-1", 2.5))) is running
    assert both.hook.timeouts == [None, 2.5]
    both.read_also(Asked())
    assert both.drive(iter_of(Poll("k-1"))) == "a question"


def iter_of(step: Any) -> Steps[Any]:
    return (yield step)


def test_each_step_is_what_its_name_says() -> None:
    done = seen(ExecutionState.COMPLETED)
    able, watch = worker(True, poll=done), Watch(kickoff_id="k-1", started=0.0)
    completed = Outcome(COMPLETED, "k-1")
    assert able.drive(iter_of(PollOnce(watch))) == completed
    assert able.drive(iter_of(PollUntilOver(watch))) == completed
    assert able.drive(iter_of(PollPatiently("k-1"))) is done
    assert able.drive(iter_of(Fetch(Watch(kickoff_id="k-1", started=0.0), completed))) is done
    assert able.drive(iter_of(Do(dict, [("a", 1)], b=2))) == {"a": 1, "b": 2}
    able.hook.timeouts.clear()
    call: Any = SimpleNamespace(path="/inputs")
    assert able.drive(iter_of(Get(call, 3.5))) == "/inputs"
    assert able.hook.timeouts == [3.5]


def test_a_pause_is_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(drive_module.time, "sleep", slept.append)
    worker(True).drive(iter_of(Pause(2.5)))
    assert slept == [2.5]


def test_a_deferral_resumes_the_task_with_its_arguments() -> None:
    trigger, waiting, timeout = object(), {"waiting": {}}, timedelta(minutes=1)
    with pytest.raises(TaskDeferred) as deferred:
        Defer(trigger, waiting, timeout).do(None)
    found = deferred.value
    assert (found.trigger, found.method_name, found.kwargs, found.timeout) == (
        trigger,
        "execute_complete",
        waiting,
        timeout,
    )
