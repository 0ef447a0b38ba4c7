"""The sensor in its three modes: the same ends, whichever way it waits."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    TaskDeferred,
)
from faults.dialects import PENDING_SPEC, SPEC, UNKNOWN_LIVE, Dialect
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import Connect, TaskRun, run, tell_states

from airflow_crew_provider.compat import deferral
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.stored_names import EXECUTION_RECORD_KEY
from airflow_crew_provider.wait import files, outcomes, watch
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from scripts.stack.waiting import PATIENCE

try:
    from airflow.sdk.exceptions import AirflowRescheduleException
except ImportError:
    from airflow.exceptions import AirflowRescheduleException
try:
    from airflow.sdk.execution_time.context import set_current_context
except ImportError:
    from airflow.models.taskinstance import set_current_context

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
POLL = "GET /status/k-1"
MODES = ("poke", "reschedule", "deferrable")
modes = pytest.mark.parametrize("mode", MODES)


def sensor(mode: str, **more: Any) -> CrewStatusSensor:
    how = {"deferrable": True} if mode == "deferrable" else {"deferrable": False, "mode": mode}
    return CrewStatusSensor(
        **{"task_id": "wait", "kickoff_id": "k-1", "poke_interval": 0.05, "timeout": 20, **how, **more}
    )


def end_of(operator: CrewStatusSensor, task_run: TaskRun | None = None, most: int = 100) -> Any:
    """Run to the end; each look of a rescheduled sensor is a process of its own."""
    task_run = task_run or TaskRun("wait")
    for _ in range(most):
        try:
            return run(operator, task_run)
        except AirflowRescheduleException as again:
            time.sleep(max(0.0, again.reschedule_date.timestamp() - time.time()))
    raise AssertionError("the sensor did not end")


@modes
def test_the_record_of_a_completed_execution(server: FaultServer, dialect: Dialect, mode: str) -> None:
    server.on(POLL, dialect.running, dialect.completed)
    record = end_of(sensor(mode, execution_id="root"))
    common = {
        "state": "completed",
        "kickoff_id": "k-1",
        "execution_id": "root",
        "crew_task_id": None,
        "output": "the output",
    }
    assert {name: record[name] for name in common} == common
    assert set(record) == {*common, "tasks", "execution_time", "usage"}
    if dialect is SPEC:
        task = {"task_id": "draft_task", "agent": "Writer", "output": "a draft", "execution_time": 1.5}
        assert (record["tasks"], record["execution_time"]) == ([task], 3.25)


@modes
def test_the_record_of_an_execution_that_waits_for_a_person(
    server: FaultServer, mode: str, log_text: Callable[[], str]
) -> None:
    server.on(POLL, SPEC.running, PENDING_SPEC)
    assert end_of(sensor(mode)) == {
        "state": "pending",
        "kickoff_id": "k-1",
        "execution_id": "k-1",
        "crew_task_id": "draft_task",
        "output": "the draft",
        "tasks": [],
        "execution_time": None,
        "usage": None,
        "output_sha256": hashlib.sha256(b"the draft").hexdigest(),
    }
    assert "Execution k-1 is waiting for a person at task draft_task" in log_text()


@modes
def test_past_pending_only_the_completed_record_ends_the_wait(server: FaultServer, mode: str) -> None:
    server.on(POLL, PENDING_SPEC, PENDING_SPEC, SPEC.completed)
    assert end_of(sensor(mode, wait_past_pending=True))["state"] == "completed"


@modes
def test_output_that_is_an_object_is_given_as_one(server: FaultServer, mode: str) -> None:
    server.on(POLL, {"state": "SUCCESS", "result": '{"a": 1}', "result_json": {"a": 1}})
    assert end_of(sensor(mode))["output"] == {"a": 1}


@modes
def test_a_failed_execution_fails_the_task_at_once_without_retries(
    server: FaultServer, dialect: Dialect, mode: str
) -> None:
    server.on(POLL, dialect.running, dialect.failed)
    with pytest.raises(AirflowFailException, match="ValueError: bad input"):
        end_of(sensor(mode))


def is_softened(mode: str, flag: str, fault: str) -> bool:
    """Airflow softens any failure of a deferred sensor, where it knows the flag; of one that pokes, what is final."""
    if mode == "deferrable":
        return flag in inspect.getsource(BaseSensorOperator.resume_execution)
    return flag == "never_fail" or fault != "gave up"


@modes
@pytest.mark.parametrize("when", ["at the first look", "later"])
@pytest.mark.parametrize("flag", ["soft_fail", "never_fail"])
@pytest.mark.parametrize("fault", ["failed", "gave up", "timeout"])
def test_soft_fail_and_never_fail_skip_in_every_mode(
    server: FaultServer, dialect: Dialect, mode: str, flag: str, fault: str, when: str
) -> None:
    answers = {"failed": dialect.failed, "gave up": Reply(status=401), "timeout": dialect.running}
    first = [dialect.running] if when == "later" else []
    server.on(POLL, *first, answers[fault])
    try:
        operator = sensor(mode, timeout=0.3 if fault == "timeout" else PATIENCE, **{flag: True})
    except Exception as error:
        pytest.skip(f"this Airflow has no {flag}: {error}")
    softened = is_softened(mode, flag, fault)
    with pytest.raises(AirflowSkipException if softened else AirflowException) as error:
        end_of(operator)
    assert isinstance(error.value, AirflowSkipException) == softened


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_silent_fail_goes_on_poking(server: FaultServer, dialect: Dialect, mode: str) -> None:
    server.on(POLL, Reply(status=401), Reply(status=401), dialect.completed)
    assert end_of(sensor(mode, silent_fail=True))["state"] == "completed"


@pytest.mark.row("A6")
@modes
@pytest.mark.parametrize("cancel_on_timeout", [False, True])
def test_a_timed_out_sensor_reports_the_executions_fate(
    server: FaultServer, dialect: Dialect, mode: str, cancel_on_timeout: bool
) -> None:
    server.on(POLL, dialect.running).on("POST /stop/k-1", {"status": "stopped", "kickoffId": "k-1"})
    with pytest.raises(AirflowSensorTimeout) as error:
        end_of(sensor(mode, timeout=0.4, cancel_on_timeout=cancel_on_timeout))
    said = str(error.value)
    assert "The wait timed out" in said
    assert "last seen running (1 of 2 tasks, now draft_task)" in said
    assert ("Execution k-1 was stopped" if cancel_on_timeout else "Clear this task to wait again") in said
    assert len(server.sent("POST /stop/k-1")) == int(cancel_on_timeout)


@pytest.mark.row("A6")
@modes
@pytest.mark.parametrize("answer", [404, 405, Reply(status=400, body={"detail": "Cannot stop execution"}), 500])
def test_a_stop_that_the_service_cannot_do_is_said(
    server: FaultServer, dialect: Dialect, mode: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FORGIVEN", 0.0)
    monkeypatch.setattr(watch, "LEAST_FAILURES", 1)
    server.on(POLL, dialect.running).on("POST /stop/k-1", answer)
    with pytest.raises(AirflowSensorTimeout, match="could not be stopped"):
        end_of(sensor(mode, timeout=0.2, cancel_on_timeout=True))


@pytest.mark.row("A6")
@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_the_execution_timeout_of_the_task_ends_the_wait_too(server: FaultServer, dialect: Dialect, mode: str) -> None:
    server.on(POLL, dialect.running)
    with pytest.raises(AirflowSensorTimeout, match="The wait timed out"):
        end_of(sensor(mode, execution_timeout=timedelta(seconds=0.4)))


@pytest.mark.row("A6")
def test_a_rescheduled_sensor_has_its_execution_timeout_per_poll(server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, *[dialect.running] * 12, dialect.completed)
    operator = sensor("reschedule", poke_interval=0.3, execution_timeout=timedelta(seconds=3))
    started = time.monotonic()
    assert end_of(operator)["state"] == "completed"
    assert time.monotonic() - started > 3  # all polls together


def test_a_rescheduled_sensor_remembers_between_its_pokes(server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, dialect.running)
    task_run = TaskRun("wait")
    operator = sensor("reschedule", timeout=0.6)
    with pytest.raises(AirflowSensorTimeout, match=r"after \d+ s"):
        end_of(operator, task_run)
    with pytest.raises(AirflowRescheduleException):
        run(operator, task_run.retry())


def test_a_rescheduled_sensor_pauses_until_its_last_poke_is_recorded(
    server: FaultServer, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "NOTICED_AFTER", 5.0)
    server.on(POLL, dialect.running)
    now = time.time()
    with pytest.raises(AirflowRescheduleException) as away:
        run(sensor("reschedule"), TaskRun("wait"))
    assert away.value.reschedule_date.timestamp() >= now + 5.0


def test_a_rescheduled_sensor_forgets_what_it_learned_when_it_ends(
    server: FaultServer, dialect: Dialect, variables: Any
) -> None:
    server.on(POLL, dialect.running, dialect.running, dialect.completed)
    assert end_of(sensor("reschedule"))["state"] == "completed"
    assert all(name.startswith(EXECUTION_RECORD_KEY) for name in variables.kept), "the tab's record stays with the run"


class Away:
    """Lets some accesses to Airflow's Variables fail, by the name of the sensor's progress in them."""

    def __init__(self, variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._variables, self._patch, self.kept = variables, monkeypatch, variables.kept

    def at(self, access: str, *failing: bool) -> None:
        used, failures = getattr(self._variables, access), iter(failing)

        def fails(key: str, *given: Any, **more: Any) -> Any:
            text = given[0] if given and access == "set" else self._variables.kept.get(key, "")
            if "crew_watch" in str(text) and next(failures, False):
                raise OSError("the database is away")
            return used(key, *given, **more)

        self._patch.setattr(self._variables, access, fails)


@pytest.fixture
def away(variables: Any, monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(variables, monkeypatch)


@pytest.mark.row("A4")
@pytest.mark.parametrize("failing", [[True], [False, True], [True] * 9], ids=["first", "second", "all"])
def test_a_rescheduled_sensor_waits_on_after_failed_writes(
    server: FaultServer, away: Away, log_text: Callable[[], str], failing: list[bool]
) -> None:
    server.on(POLL, SPEC.running, SPEC.running, SPEC.running, SPEC.completed)
    away.at("set", *failing)
    assert end_of(sensor("reschedule"))["state"] == "completed"
    assert "the database is away). Execution k-1 is not affected, and the task goes on" in log_text()


@pytest.mark.row("A4")
def test_a_rescheduled_sensor_keeps_a_result_if_its_progress_stays(
    server: FaultServer, away: Away, log_text: Callable[[], str]
) -> None:
    server.on(POLL, SPEC.running, SPEC.completed)
    away.at("delete", True)
    assert end_of(sensor("reschedule"))["state"] == "completed"
    assert "the database is away). Execution k-1 is not affected, and the task goes on" in log_text()


@pytest.mark.row("A4")
def test_a_rescheduled_sensor_waits_on_without_its_progress(
    server: FaultServer, away: Away, log_text: Callable[[], str]
) -> None:
    server.on(POLL, SPEC.running, UNKNOWN_LIVE, SPEC.completed)
    task_run, operator = TaskRun("wait"), sensor("reschedule", timeout=0.01)
    with pytest.raises(AirflowRescheduleException):
        run(sensor("reschedule"), task_run)
    kept = dict(away.kept)
    away.at("get", True, True)
    with pytest.raises(AirflowRescheduleException):
        run(operator, task_run)  # it is past its timeout, as far as it knows
    assert away.kept == kept
    assert run(operator, task_run)["state"] == "completed"
    assert "the database is away). Execution k-1 is not affected, and the task goes on" in log_text()


@pytest.mark.row("A4")
def test_a_rescheduled_sensor_opens_its_storage_only_at_both_ends(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on(POLL, SPEC.running, SPEC.running, SPEC.completed)
    opened, task_run, operator = files.opened, TaskRun("wait"), sensor("reschedule", output_to=str(tmp_path / "output"))

    def away(path: str) -> None:
        raise OSError("the secrets backend is away")

    with pytest.raises(AirflowRescheduleException):
        run(operator, task_run)
    monkeypatch.setattr(files, "opened", away)
    with pytest.raises(AirflowRescheduleException):
        run(operator, task_run)
    monkeypatch.setattr(files, "opened", opened)
    assert run(operator, task_run)["output_path"] == str(tmp_path / "output")


@pytest.mark.row("N8")
def test_a_completed_execution_that_reads_running_is_polled_again(server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, dialect.running, dialect.completed, dialect.running, dialect.completed)
    assert end_of(sensor("deferrable"))["state"] == "completed"


@pytest.mark.row("N8")
def test_a_pending_execution_answered_by_somebody_else_is_awaited_again(
    server: FaultServer, log_text: Callable[[], str]
) -> None:
    server.on(POLL, SPEC.running, PENDING_SPEC, SPEC.running, SPEC.running, SPEC.completed)
    assert end_of(sensor("deferrable"))["state"] == "completed"
    assert "it was answered elsewhere" in log_text()


def test_a_pending_execution_that_has_failed_meanwhile_fails_without_retries(server: FaultServer) -> None:
    server.on(POLL, SPEC.running, PENDING_SPEC, SPEC.failed)
    with pytest.raises(CrewTaskFailed, match="ValueError: bad input"):
        end_of(sensor("deferrable"))


@pytest.mark.row("N8")
def test_a_completed_execution_whose_result_vanished_fails_with_a_message(
    server: FaultServer, dialect: Dialect, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "FORGIVEN", 0.5)
    server.on(POLL, dialect.running, dialect.completed, dialect.failed)
    with pytest.raises(AirflowException, match="was seen as completed, but its result could not be fetched"):
        end_of(sensor("deferrable"))


@modes
@pytest.mark.parametrize("kickoff_id", ["", "..", "x" * 3000, None])
def test_what_is_no_id_is_refused_before_anything_is_sent(server: FaultServer, mode: str, kickoff_id: Any) -> None:
    with pytest.raises(CrewTaskFailed, match="nothing was sent"):
        end_of(sensor(mode, kickoff_id=kickoff_id))
    assert server.requests == []


@pytest.mark.parametrize("event", [None, {}, "completed", {"kind": "completed"}, {"kind": "done", "kickoff_id": "k-1"}])
def test_an_event_that_is_missing_or_malformed_fails_the_task(server: FaultServer, event: Any) -> None:
    server.on(POLL, SPEC.completed)
    with pytest.raises(AirflowException, match="cannot be read"):
        sensor("deferrable").resume_execution("execute_complete", {"event": event}, TaskRun("wait").context())
    assert server.requests == []


def test_exponential_backoff_and_max_wait_replace_the_pace(server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, *[dialect.running] * 9, dialect.completed)
    end_of(sensor("poke", exponential_backoff=True, max_wait=0.2))
    pauses = [b.at - a.at for a, b in zip(server.requests, server.requests[1:], strict=False)]
    assert pauses[2] > 0.12
    assert sum(pauses) < 0.05 * 2**8, "without a maximum, the last pause alone takes as long"


@pytest.mark.row("A22")
@pytest.mark.parametrize(
    "later",
    [[], ["run_started"], ["run_started", "run_after"]],
    ids=["the same run", "recreated for the same date", "recreated"],
)
def test_a_recreated_run_does_not_inherit_the_deleted_ones_deadline(
    server: FaultServer, variables: Any, later: list[str]
) -> None:
    server.on(POLL, SPEC.running)
    operator = sensor("reschedule", timeout=60)
    task_run = TaskRun("wait")
    with pytest.raises(AirflowRescheduleException):
        operator.execute(task_run.context())
    again = replace(task_run, **{name: getattr(task_run, name) + timedelta(hours=1) for name in later})
    before = deadline_on_record(variables)
    with pytest.raises(AirflowRescheduleException):
        sensor("reschedule", timeout=600).execute(again.context())
    assert (deadline_on_record(variables) == before) is (not later)


def deadline_on_record(variables: Any) -> float:
    [record] = [value for key, value in variables.kept.items() if key.startswith("crew_task__")]
    return float(json.loads(record)["parts"]["crew_watch"]["deadline"])


# --- a user ends or clears the wait while a worker polls ---------------------------------------------------------


@pytest.mark.row("A5")
@pytest.mark.parametrize(("state", "stops"), [("failed", 1), ("success", 1), ("restarting", 0)])
def test_a_wait_cleared_while_a_worker_polls_goes_on(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, state: str, stops: int
) -> None:
    server.on(POLL, SPEC.running, SPEC.completed).on("POST /stop/k-1", {"status": "stopped"})
    operator, task_run = sensor("poke", cancel_on_kill=True), TaskRun("wait")
    context = task_run.context()
    with set_current_context(context), monkeypatch.context() as killed:
        tell_states(killed, lambda task: state, SUPERVISOR_COMMS=object())
        assert not operator.poke(context)
        operator.on_kill()
    assert len(server.sent("POST /stop/k-1")) == stops
    if state == "restarting":
        assert end_of(operator, task_run.retry())["state"] == "completed"


# --- no triggerer runs the wait -----------------------------------------------------------------------------

NO_TRIGGERER = ("__fail__", {"error": "Trigger timeout"})  # how Airflow resumes a task whose deferral timed out


@pytest.mark.row("A3", "A6")
def test_a_wait_that_no_triggerer_ran_ends_with_its_fate(server: FaultServer) -> None:
    server.on(POLL, SPEC.running).on("POST /stop/k-1", {"status": "stopped"})
    operator = sensor("deferrable", timeout=60, cancel_on_timeout=True)
    with pytest.raises(AirflowSensorTimeout, match=r"timed out.*Execution k-1 was stopped"):
        operator.resume_execution(*NO_TRIGGERER, TaskRun("wait").context())
    assert len(server.sent("POST /stop/k-1")) == 1


@pytest.mark.row("A3", "A6")
def test_airflows_timeout_does_not_discard_an_available_result(server: FaultServer) -> None:
    server.on(POLL, SPEC.completed)
    record = sensor("deferrable", timeout=60).resume_execution(*NO_TRIGGERER, TaskRun("wait").context())
    assert record["state"] == "completed"


@modes
def test_an_unusable_connection_leaves_the_execution_unaffected(
    server: FaultServer, connect: Connect, mode: str
) -> None:
    connect("")
    fate = "Host is empty.*Execution k-1 is not affected; correct the connection and clear this task"
    with pytest.raises(CrewTaskFailed, match=fate):
        run(sensor(mode))
    assert not server.requests


@pytest.mark.row("N2")
def test_a_deferral_honours_the_retry_after_of_its_last_poll(server: FaultServer) -> None:
    server.on(POLL, Reply(status=429, headers={"Retry-After": "2"}), SPEC.completed)
    assert run(sensor("deferrable"))["state"] == "completed"
    first, second, *_ = (request.at for request in server.sent(POLL))
    assert second - first >= 2.0


@pytest.mark.row("N2")
def test_a_deferral_after_a_short_retry_after_ignores_the_interval(server: FaultServer) -> None:
    server.on(POLL, Reply(status=429, headers={"Retry-After": "20"}))
    operator, began = sensor("deferrable", poke_interval=200.0, timeout=1000), time.time()
    with pytest.raises(TaskDeferred) as deferral:
        operator.execute(TaskRun("wait").context())
    assert 20 <= deferral.value.trigger.not_before - began < 100
