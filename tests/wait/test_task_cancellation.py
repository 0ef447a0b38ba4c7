"""Why a wait is broken off, read from the state of its task."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from simulated_airflow import tell_states

from airflow_crew_provider.compat import supervisor
from airflow_crew_provider.compat.supervisor import DELETED, AirflowTaskTimeout
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.outcomes import (
    Ending,
    ending_of,
    is_by_user,
    to_its_end,
    until_log_is_read,
)

try:
    from airflow.sdk.execution_time.context import set_current_context
except ImportError:
    from airflow.models.taskinstance import set_current_context

GOES_ON = ["deferred", "scheduled", "queued", "running", "awaiting_input", "up_for_retry", "up_for_reschedule", None]
ENDED = ["success", "failed", "skipped", "removed", "restarting", "upstream_failed", DELETED]
TASK = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)


def is_for_good(ti: Any) -> bool:
    return ending_of(ti) not in (None, Ending.UNKNOWN)


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let Airflow say a state of the task, or fail to."""

    def says(state: Any) -> list[Any]:
        asked: list[Any] = []

        def tell(task: str) -> Any:
            asked.append(task)
            if isinstance(state, Exception):
                raise state
            return state

        tell_states(monkeypatch, tell, SUPERVISOR_COMMS=object())
        return asked

    return says


@pytest.mark.row("A5")
@pytest.mark.parametrize("state", ["running", "failed"])
def test_a_worker_shutting_down_before_calling_the_task_ends_nothing(says: Any, state: str) -> None:
    says(state)
    with set_current_context({"ti": TASK}):  # type: ignore[typeddict-item]
        assert is_for_good(None) is (state == "failed")


class Trigger:
    """A trigger with a task, and a log that is kept."""

    def __init__(self, task_instance: Any = TASK) -> None:
        self.task_instance, self.logged = task_instance, []
        self.log = SimpleNamespace(warning=lambda *said, **more: self.logged.append((said, more)))


@pytest.mark.parametrize("state", [*GOES_ON, *ENDED])
def test_only_tasks_in_an_ended_state_were_ended_by_users(says: Any, state: Any) -> None:
    asked = says(state)
    ended = state in ENDED
    assert asyncio.run(is_by_user(Trigger(), without_task=False)) is ended
    assert is_for_good(TASK) is ended
    assert asked == [TASK.task_id] * 2


@pytest.mark.parametrize(
    ("state", "was_woken", "ended"),
    [("success", True, False), ("success", False, True), ("failed", True, True), ("running", True, False)],
)
def test_a_task_that_was_woken_may_have_succeeded_by_itself(
    says: Any, state: str, was_woken: bool, ended: bool
) -> None:
    async def woken() -> bool:
        return was_woken

    says(state)
    assert asyncio.run(is_by_user(Trigger(), without_task=False, was_woken=woken)) is ended


@pytest.mark.parametrize(("state", "ended"), [("running", False), ("failed", True)])
def test_the_state_of_a_worker_of_airflow_2_counts_too(
    says: Any, monkeypatch: pytest.MonkeyPatch, state: str, ended: bool
) -> None:
    monkeypatch.setattr(supervisor, "task_runner", None)
    row = SimpleNamespace(first=lambda: (state,))
    database = SimpleNamespace(query=lambda *columns: SimpleNamespace(filter=lambda *of_task: row))
    monkeypatch.setattr("airflow.utils.session.create_session", lambda: nullcontext(database))
    task = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
    assert is_for_good(SimpleNamespace(job_id=7, **task)) is ended
    assert is_for_good(SimpleNamespace(job_id=None)) is True


@pytest.mark.parametrize("answer", [True, False])
def test_a_trigger_without_a_task_takes_the_given_answer(says: Any, answer: bool) -> None:
    says(RuntimeError("not asked"))
    assert asyncio.run(is_by_user(Trigger(None), without_task=answer)) is answer


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unreadable_state_stops_nothing_and_is_logged(says: Any) -> None:
    says(RuntimeError("away"))
    trigger = Trigger()
    assert asyncio.run(is_by_user(trigger, without_task=True)) is False
    said = "The task's state could not be looked up; the execution is not stopped"
    assert trigger.logged == [((said,), {"exc_info": True})]
    assert is_for_good(TASK) is False


def test_a_timeout_no_task_and_no_worker_are_for_good(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    says("running")
    assert is_for_good(None) is True
    try:
        raise AirflowTaskTimeout("too long")
    except AirflowTaskTimeout:
        assert is_for_good(TASK) is True
    assert is_for_good(TASK) is False
    tell_states(monkeypatch, lambda task: "running")  # without a supervisor
    assert is_for_good(TASK) is True


def test_an_airflow_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "LOOKUP_SECONDS", 0.1)
    keeps_the_process: list[bool] = []
    over = threading.Event()

    def hangs(task: str) -> str:
        keeps_the_process.append(not threading.current_thread().daemon)
        over.wait()
        return "failed"

    tell_states(monkeypatch, hangs, SUPERVISOR_COMMS=object())
    assert is_for_good(TASK) is False  # though the look-up has not ended
    over.set()
    assert keeps_the_process == [False]


def test_work_at_a_kill_goes_on_through_further_cancellations() -> None:
    async def play() -> list[str]:
        done: list[str] = []
        may_end = asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            done.append("stopped")

        kept = asyncio.create_task(to_its_end(work(), 3600))
        for _ in range(3):
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # a turn of the loop to wait, another to hear of the cancellation
            kept.cancel()
        await asyncio.sleep(0)
        may_end.set()
        await kept
        return done

    assert asyncio.run(play()) == ["stopped"]


def test_work_that_does_not_end_is_given_up() -> None:
    async def play() -> float:
        began = time.monotonic()
        await to_its_end(asyncio.Event().wait(), 0.1)
        return time.monotonic() - began

    assert asyncio.run(play()) >= 0.1


def test_a_worker_is_recognized_by_its_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = SimpleNamespace()
    monkeypatch.setattr(supervisor, "task_runner", runner)
    assert (supervisor.supervisor(), supervisor.runs_in_worker(TASK)) == (None, False)
    runner.SUPERVISOR_COMMS = "the line"
    assert (supervisor.supervisor(), supervisor.runs_in_worker(TASK)) == ("the line", True)


def test_an_airflow_2_worker_is_recognized_by_its_tasks_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "task_runner", None)
    assert supervisor.supervisor() is None
    assert supervisor.runs_in_worker(SimpleNamespace(job_id=7)) is True
    assert supervisor.runs_in_worker(SimpleNamespace(job_id=None)) is False  # `dag.test()`, `airflow tasks test`
    assert supervisor.runs_in_worker(TASK) is False


@pytest.mark.parametrize(
    ("index", "states", "state"),
    [
        (-1, {"r": {"t": "running"}}, "running"),
        (None, {"r": {"t": None}}, None),
        (2, {"r": {"t_2": "failed", "t": "running"}}, "failed"),
        (-1, {"r": {}}, DELETED),
        (-1, {}, DELETED),
    ],
)
def test_the_state_of_a_task_is_found_under_its_name(
    monkeypatch: pytest.MonkeyPatch, index: int | None, states: Any, state: Any
) -> None:
    asked: list[Any] = []

    def get_task_states(**where: Any) -> Any:
        asked.append(where)
        return states

    instance = SimpleNamespace(get_task_states=get_task_states)
    monkeypatch.setattr(supervisor, "task_runner", SimpleNamespace(RuntimeTaskInstance=instance))
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=index)
    assert supervisor.task_state(ti) == state
    assert asked == [{"dag_id": "d", "task_ids": ["t"], "run_ids": ["r"], "map_index": index}]


@pytest.mark.row("A28")
@pytest.mark.parametrize(("line", "state"), [("CommsDecoder", None), ("TriggerCommsDecoder", "success")])
def test_workers_look_up_their_own_iteration_and_triggerers_the_latest(
    monkeypatch: pytest.MonkeyPatch, line: str, state: str | None
) -> None:
    ended = [{"task_id": "t", "state": "success", "region_id": str(UUID(int=7)), "region_index": 1}]
    instance = SimpleNamespace(
        get_task_breadcrumbs=lambda dag_id, run_id: ended, get_task_states=lambda **where: {"r": {"t": "success"}}
    )
    said = SimpleNamespace(RuntimeTaskInstance=instance, SUPERVISOR_COMMS=type(line, (), {})())
    monkeypatch.setattr(supervisor, "task_runner", said)
    first, second = (
        SimpleNamespace(**vars(TASK) | {"dag_id": "d", "run_id": "r", "region_id": UUID(int=7), "region_index": index})
        for index in (0, 1)
    )
    assert (supervisor.task_state(first), supervisor.task_state(second)) == (state, "success")


@pytest.mark.row("A28")
def test_a_task_outside_loops_is_looked_up_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {"r": {"t": "running", "t_3": "failed"}}
    instance = SimpleNamespace(get_task_states=lambda **where: states)
    monkeypatch.setattr(supervisor, "task_runner", SimpleNamespace(RuntimeTaskInstance=instance))
    top = SimpleNamespace(**vars(TASK), region_id=UUID(int=0), region_index=-1)
    mapped = SimpleNamespace(**{**vars(TASK), "map_index": 3}, region_id=UUID(int=8), region_index=3)
    assert (supervisor.task_state(top), supervisor.task_state(mapped)) == ("running", "failed")


@pytest.mark.parametrize("state", ["running", RuntimeError("away")], ids=str)
def test_a_trigger_takes_turns_until_its_log_is_read(says: Any, state: Any) -> None:
    asked = says(state)
    asyncio.run(until_log_is_read(SimpleNamespace(task_instance=TASK)))
    assert asked == ["t"] * outcomes.LOG_TURNS
    asyncio.run(until_log_is_read(SimpleNamespace(task_instance=None)))
    assert len(asked) == outcomes.LOG_TURNS
