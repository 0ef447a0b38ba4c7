"""A task is killed in a worker: during its request, or after its end because a callback is slow."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from faults.dialects import SPEC
from faults.server import FaultServer
from simulated_airflow import TaskRun, tell_states
from waiting_tasks import POLL, completed, kickoff_that_waits, sensor_that_waits

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed

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
def test_a5_a_task_that_has_succeeded_stops_nothing_when_its_callback_is_killed(
    make: Any, state: list[str], server: FaultServer
) -> None:
    task = make()
    task.execute(TaskRun(task.task_id).context())
    state[0] = "success"
    task.on_kill()
    assert server.sent(STOP) == []


@pytest.mark.row("A5")
@pytest.mark.parametrize("make", [kickoff_that_waits, sensor])
def test_a5_a_task_that_has_failed_stops_nothing_when_its_callback_is_killed(
    make: Any, state: list[str], server: FaultServer
) -> None:
    server.on(POLL, SPEC.failed)
    task = make(deferrable=False) if make is kickoff_that_waits else make()
    with pytest.raises((CrewTaskFailed, CrewTryFailed)):
        task.execute(TaskRun(task.task_id).context())
    state[0] = "failed"
    task.on_kill()
    assert server.sent(STOP) == []


@pytest.mark.row("A5")
def test_a5_a_deferring_task_that_a_user_has_ended_stops_its_execution(state: list[str], server: FaultServer) -> None:
    server.on(POLL, SPEC.running)
    task = sensor_that_waits(deferrable=True, cancel_on_kill=True)
    with pytest.raises(TaskDeferred):
        task.execute(TaskRun(task.task_id).context())
    state[0] = "failed"
    task.on_kill()
    assert len(server.sent(STOP)) == 1


@pytest.mark.row("A5")
@pytest.mark.parametrize(("ended", "stops"), [("failed", 1), ("running", 0)])
def test_a5_an_execution_whose_id_arrives_after_the_kill_is_stopped_if_a_user_ended_the_task(
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
