"""`poll_in_worker`: the end of a short crew is seen before the task defers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, TaskDeferred
from faults.dialects import SPEC
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import TaskRun, run
from waiting_tasks import POLL, completed, kickoff_that_waits, sensor_that_waits

try:
    from airflow.sdk.exceptions import AirflowRescheduleException
except ImportError:
    from airflow.exceptions import AirflowRescheduleException

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
POST = "POST /kickoff"
both = pytest.mark.parametrize("waiting", [kickoff_that_waits, sensor_that_waits], ids=["kickoff", "sensor"])
Waiting = Callable[..., Any]


@pytest.fixture(autouse=True)
def a_crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": []}).on(POST, {"kickoff_id": "k-1"}).on(POLL, SPEC.running)


def begun(operator: Any, task_run: TaskRun | None = None) -> Any:
    """Run the part of a task before its deferral, if it defers."""
    return operator.execute((task_run or TaskRun(operator.task_id)).context())


@both
def test_a_short_crew_ends_in_the_worker_whatever_the_interval(waiting: Waiting, server: FaultServer) -> None:
    server.on(POLL, SPEC.running, completed("short"))
    interval = {"poll_interval": 60} if waiting is kickoff_that_waits else {"poke_interval": 60}
    assert begun(waiting(deferrable=True, poll_in_worker=30, **interval))["output"] == "short"


@both
@pytest.mark.parametrize(("seconds", "least", "most"), [(0, 1, 1), ("2", 2, 41)])
def test_a_longer_crew_is_left_to_the_triggerer(
    waiting: Waiting, server: FaultServer, seconds: Any, least: int, most: int
) -> None:
    operator = waiting(deferrable=True, poll_in_worker=seconds)
    with pytest.raises(TaskDeferred) as deferred:
        begun(operator)
    assert least <= len(server.sent(POLL)) <= most
    trigger = deferred.value.trigger
    assert trigger.poll_interval == 0.05
    assert trigger.known


def test_its_polls_count_against_the_deadline(server: FaultServer) -> None:
    with pytest.raises(AirflowSensorTimeout, match="timed out after"):
        begun(sensor_that_waits(deferrable=True, poll_in_worker=30, timeout=2))
    assert len(server.sent(POLL)) > 1


@both
def test_a_service_asking_for_a_longer_pause_is_left_alone(waiting: Waiting, server: FaultServer) -> None:
    server.on(POLL, Reply(status=429, body={}, headers={"Retry-After": "60"}))
    with pytest.raises(TaskDeferred):
        begun(waiting(deferrable=True, poll_in_worker=30, timeout=600))
    assert len(server.sent(POLL)) == 1


def test_a_rescheduled_sensor_frees_its_worker_as_before(server: FaultServer) -> None:
    with pytest.raises(AirflowRescheduleException):
        begun(sensor_that_waits(deferrable=False, mode="reschedule", poll_in_worker=30))
    assert len(server.sent(POLL)) == 1


@pytest.mark.row("A2")
def test_a_retry_reattaches_after_the_polling_worker_was_killed(server: FaultServer) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    def kill(request: Any) -> Reply:
        if len(server.sent(POLL)) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return Reply(body=SPEC.running if len(server.sent(POLL)) < 3 else completed("once"))

    server.on(POLL, kill)
    task_run, operator = TaskRun(), kickoff_that_waits(deferrable=True, poll_in_worker=30)
    before = signal.signal(signal.SIGTERM, killed)
    try:
        with pytest.raises(KeyboardInterrupt):
            begun(operator, task_run)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert run(kickoff_that_waits(deferrable=True, poll_in_worker=30), task_run.retry())["output"] == "once"
    assert len(server.sent(POST)) == 1
