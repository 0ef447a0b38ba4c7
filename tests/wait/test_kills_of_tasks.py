"""A task is killed in a worker: during its request, or after its end because a callback is slow."""

from __future__ import annotations

import os
import signal
from threading import Lock, Thread
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from faults.dialects import SPEC
from faults.server import FaultServer, Reply
from simulated_airflow import Connect, TaskRun, tell_states
from waiting_tasks import POLL, completed, kickoff_that_waits, sensor_that_waits

from airflow_crew_provider.compat.supervisor import AirflowTaskTimeout
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed
from scripts.stack.waiting import wait_until

pytestmark = pytest.mark.usefixtures("simulated_airflow")
POST, STOP = "POST /kickoff", "POST /stop/k-1"


@pytest.fixture(autouse=True)
def a_crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": []}).on(POST, {"kickoff_id": "k-1"}).on(POLL, completed("done"))
    server.on(STOP, {"status": "stopped", "kickoffId": "k-1"})


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The state of the task, which runs in a worker."""
    told = ["running"]
    tell_states(monkeypatch, lambda task: told[0], SUPERVISOR_COMMS=object())
    return told


def kickoff(**more: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(task_id="kickoff", inputs={}, **{"deferrable": False, **more})


def sensor(**more: Any) -> Any:
    return sensor_that_waits(deferrable=False, cancel_on_kill=True, **more)


@pytest.mark.row("A5")
@pytest.mark.parametrize("make", [kickoff, sensor])
def test_killing_the_callback_of_a_succeeded_task_stops_nothing(
    make: Any, state: list[str], server: FaultServer
) -> None:
    task = make()
    task.execute(TaskRun(task.task_id).context())
    state[0] = "success"
    task.on_kill()
    assert server.sent(STOP) == []


@pytest.mark.row("A5")
@pytest.mark.parametrize("make", [kickoff_that_waits, sensor])
def test_killing_the_callback_of_a_failed_task_stops_nothing(make: Any, state: list[str], server: FaultServer) -> None:
    server.on(POLL, SPEC.failed)
    task = make(deferrable=False) if make is kickoff_that_waits else make()
    with pytest.raises((CrewTaskFailed, CrewTryFailed)):
        task.execute(TaskRun(task.task_id).context())
    state[0] = "failed"
    task.on_kill()
    assert server.sent(STOP) == []


@pytest.mark.row("A5")
def test_a_deferring_task_ended_by_a_user_stops_its_execution(state: list[str], server: FaultServer) -> None:
    server.on(POLL, SPEC.running)
    task = sensor_that_waits(deferrable=True, cancel_on_kill=True)
    with pytest.raises(TaskDeferred):
        task.execute(TaskRun(task.task_id).context())
    state[0] = "failed"
    task.on_kill()
    assert len(server.sent(STOP)) == 1


@pytest.mark.row("A5")
@pytest.mark.parametrize(("ended", "stops"), [("failed", 1), ("running", 0)])
def test_an_execution_known_only_after_a_users_kill_is_stopped(
    state: list[str], server: FaultServer, ended: str, stops: int
) -> None:
    task = kickoff()

    def answers_late(request: Any) -> Any:
        state[0] = ended
        task.on_kill()
        return {"kickoff_id": "k-1"}

    server.on(POST, answers_late)
    assert task.execute(TaskRun("kickoff").context()) == "k-1"
    assert len(server.sent(STOP)) == stops


@pytest.mark.row("A6")
@pytest.mark.parametrize(("after", "fate"), [(SPEC.failed, "was stopped"), (SPEC.running, "could not be stopped")])
def test_a_stop_interrupted_by_the_execution_timeout_reports_its_outcome(
    server: FaultServer,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    after: Any,
    fate: str,
) -> None:
    server.on(POLL, SPEC.running).on(STOP, Reply(delay=60, body={}), Reply(status=409, body={}))
    task = kickoff_that_waits(deferrable=False, timeout=0.2, poll_interval=0.05)

    def reach_the_timeout() -> None:
        wait_until(lambda: server.sent(STOP), "the stop")
        server.on(POLL, after)
        os.kill(os.getpid(), signal.SIGUSR1)

    def time_out(*_: object) -> None:
        raise AirflowTaskTimeout

    before = signal.signal(signal.SIGUSR1, time_out)
    thread = Thread(target=reach_the_timeout)
    thread.start()
    try:
        task.execute(TaskRun(task.task_id).context())
    except AirflowTaskTimeout:
        task.on_kill()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert f"The task was killed. Execution k-1 {fate}" in capsys.readouterr().out + caplog.text


def times_out(task: Any, task_run: TaskRun, server: FaultServer) -> None:
    """Let Airflow's execution timeout end a try that waits in its worker."""

    def reach_the_timeout() -> None:
        wait_until(lambda: server.sent(POLL), "a poll")
        os.kill(os.getpid(), signal.SIGUSR1)

    def time_out(*_: object) -> None:
        raise AirflowTaskTimeout

    server.on(POLL, SPEC.running)
    before = signal.signal(signal.SIGUSR1, time_out)
    thread = Thread(target=reach_the_timeout)
    thread.start()
    try:
        task.execute(task_run.context())
    except AirflowTaskTimeout:
        task.on_kill()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.row("A38")
def test_an_execution_timeouts_stop_is_recorded_before_it_is_sent(state: list[str], server: FaultServer) -> None:
    task_run = TaskRun("kickoff")
    times_out(kickoff(wait_for_completion=True), task_run, server)
    assert len(server.sent(STOP)) == 1
    server.on(POLL, {"status": "error", "error": "stopped"})
    with pytest.raises(CrewTaskFailed, match="execution_timeout") as failure:
        kickoff(wait_for_completion=True).execute(task_run.retry().context())
    assert "not retried" in str(failure.value)
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A38", "A15")
@pytest.mark.parametrize("keyed", [False, True])
def test_a_timeout_while_the_id_is_recorded_starts_nothing(
    state: list[str], server: FaultServer, connect: Connect, a_memory: Any, keyed: bool
) -> None:
    connect(server.url, idempotency_keys=keyed)
    task_run, task = TaskRun("kickoff"), kickoff(wait_for_completion=True)
    with pytest.MonkeyPatch.context() as patch:
        stored = a_memory.set

        def time_out(key: str, value: Any, **more: Any) -> None:
            patch.setattr(a_memory, "set", stored)
            raise AirflowTaskTimeout

        server.on(POST, lambda request: patch.setattr(a_memory, "set", time_out) or {"kickoff_id": "k-1"})
        try:
            task.execute(task_run.context())
        except AirflowTaskTimeout:
            task.on_kill()
    assert len(server.sent(STOP)) == 1
    server.on(POLL, {"status": "error", "error": "stopped"})
    for _ in range(2):
        with pytest.raises(CrewTaskFailed, match=r"execution_timeout .* Execution k-1 has ended"):
            kickoff(wait_for_completion=True).execute(task_run.retry().context())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A38")
@pytest.mark.parametrize("retries", [2, 0])
def test_an_unrecordable_stop_waits_for_the_last_try(
    state: list[str], server: FaultServer, retries: int, a_memory: Any
) -> None:
    task_run = TaskRun("kickoff", retries=retries)
    task_run.max_tries = retries
    task = kickoff(wait_for_completion=True, retries=retries)
    a_memory.refused = '"timed_out"'
    times_out(task, task_run, server)
    a_memory.refused = None
    assert len(server.sent(STOP)) == (0 if retries else 1)


@pytest.mark.row("A6")
@pytest.mark.parametrize("cancel_on_kill", [False, True])
@pytest.mark.parametrize(("cancel_on_timeout", "retries", "stops"), [(False, 0, 0), (True, 1, 0), (True, 0, 1)])
def test_a_sensors_execution_timeout_stops_only_what_it_should(
    state: list[str], server: FaultServer, cancel_on_kill: bool, cancel_on_timeout: bool, retries: int, stops: int
) -> None:
    """Airflow retries it, unlike a wait that ends at its own deadline, so only the last try stops the execution."""
    task_run = TaskRun("wait", retries=retries)
    cancels = {"cancel_on_kill": cancel_on_kill, "cancel_on_timeout": cancel_on_timeout}
    times_out(sensor_that_waits(deferrable=False, retries=retries, **cancels), task_run, server)
    assert len(server.sent(STOP)) == stops


class Killed(BaseException):
    """The end of the process."""


def is_killed(task: CrewKickoffOperator, task_run: TaskRun, server: FaultServer) -> None:
    """Let Airflow kill a try that waits in its worker: in a signal handler, which does not return."""

    def kill() -> None:
        wait_until(lambda: server.sent(POLL), "a poll")
        os.kill(os.getpid(), signal.SIGUSR1)

    def handle(*_: object) -> None:
        task.on_kill()
        raise Killed

    server.on(POLL, SPEC.running)
    before = signal.signal(signal.SIGUSR1, handle)
    thread = Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(Killed):
            task.execute(task_run.context())
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.row("A5", "A38")
@pytest.mark.parametrize(
    ("cancel_on_kill", "stop", "after", "stops"),
    [
        (True, Reply(status=503), SPEC.running, 2),
        (True, {"status": "stopped"}, {"status": "error", "error": "stopped"}, 1),
        (False, {"status": "stopped"}, SPEC.running, 0),
    ],
    ids=["not stopped", "stopped", "kept"],
)
def test_a_task_cleared_while_running_starts_another_execution(
    state: list[str], server: FaultServer, cancel_on_kill: bool, stop: Any, after: Any, stops: int
) -> None:
    """The next try has the numbers of a retry, so that only the kill shows that a user has cleared the task."""
    server.on(POST, {"kickoff_id": "k-1"}, {"kickoff_id": "k-2"}).on("GET /status/k-2", completed("another"))
    server.on("GET /inputs", {"inputs": [], "continues": True}).on(STOP, stop, {"status": "stopped"})
    task_run = TaskRun("kickoff")
    state[0] = "restarting"
    waiting = {"wait_for_completion": True, "poll_interval": 0.05, "timeout": 5, "cancel_on_kill": cancel_on_kill}
    is_killed(kickoff(**waiting), task_run, server)
    assert len(server.sent(STOP)) == min(stops, 1)
    state[0] = "running"
    server.on(POLL, after)
    task_run.clears += 1
    assert kickoff(**waiting).execute(task_run.retry().context())["kickoff_id"] == "k-2"
    assert [request.json.get("continueFrom") for request in server.sent(POST)] == [None, None]
    assert len(server.sent(STOP)) == stops


@pytest.mark.row("A5", "A38")
@pytest.mark.parametrize(("ended", "stops"), [("failed", 1), ("restarting", 1), ("running", 0)])
def test_a_kill_during_a_supervisor_request_is_handled_afterwards(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, log_text: Any, ended: str, stops: int
) -> None:
    monkeypatch.setattr(outcomes, "LOOKUP_SECONDS", 0.1)
    line = Lock()

    def state(task: str) -> str:
        with line:
            return ended

    tell_states(monkeypatch, state, SUPERVISOR_COMMS=object())
    task, task_run = kickoff(), TaskRun("kickoff")
    task.execute(task_run.context())
    task.has_ended = False  # it waits
    before = signal.signal(signal.SIGUSR1, lambda *_: task.on_kill())
    try:
        with line:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert server.sent(STOP) == []
    finally:
        signal.signal(signal.SIGUSR1, before)
    fate = "was stopped" if stops else "was not stopped and may still be active"
    wait_until(lambda: f"The task was killed. Execution k-1 {fate}" in log_text(), "the fate of the execution")
    assert len(server.sent(STOP)) == stops
