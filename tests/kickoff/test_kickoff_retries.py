"""What a retry of a kickoff does when something has changed since, or is unknown: it never starts a second one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred
from faults.dialects import SPEC
from faults.server import FaultServer
from faults.wire import RESET, SILENCE, NoReply, Reply
from simulated_airflow import Connect, TaskRun, die_after_recording, fresh, run

from airflow_crew_provider.models import HumanInputWebhook, Webhooks
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed
from airflow_crew_provider.wait.watch import COMPLETED, GAVE_UP, TIMEOUT, Outcome

pytestmark = pytest.mark.usefixtures("simulated_airflow")
POST = "POST /kickoff"
POLL = "GET /status/k-1"
STOP = "POST /stop/k-1"
STARTED = {"kickoff_id": "k-1"}
RUNNING = {"status": "running"}
LogText = Callable[[], str]
StoreOf = Callable[[TaskRun], Any]


def kickoff(**more: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(**{"task_id": "kickoff", "inputs": {"topic": "AI"}, "deferrable": False, **more})


@pytest.fixture(autouse=True)
def two_executions(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": ["topic"]}).on(POST, STARTED, {"kickoff_id": "k-2"}).on(POLL, RUNNING)


@pytest.fixture
def back_end_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The secrets back end is away: Airflow says that there is no such connection."""
    return lambda: monkeypatch.delenv("AIRFLOW_CONN_CREW_DEFAULT")


# --- the secrets back end is away ---------------------------------------------------------------------------


@pytest.mark.row("N18")
def test_a_kickoff_leaves_a_missing_connection_to_its_retries(
    back_end_away: Callable[[], None],
) -> None:
    back_end_away()
    with pytest.raises(AirflowException, match=r"isn't defined.*No execution was started") as error:
        run(kickoff())
    assert not isinstance(error.value, CrewTaskFailed)


@pytest.mark.row("N18")
def test_a_retry_continues_its_execution_even_without_the_connection(
    server: FaultServer, back_end_away: Callable[[], None]
) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    back_end_away()
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N18")
def test_an_open_earlier_kickoff_forbids_saying_nothing_was_started(
    server: FaultServer, back_end_away: Callable[[], None]
) -> None:
    server.on(POST, NoReply(RESET))
    task_run = TaskRun()
    with pytest.raises(CrewTaskFailed):
        run(kickoff(), task_run)
    back_end_away()
    with pytest.raises(AirflowException, match=r"kickoff that try 1 sent at 20.*is unknown") as error:
        run(kickoff(), task_run.retry())
    assert not isinstance(error.value, CrewTaskFailed)
    assert "No execution was started" not in str(error.value)


# --- token, base URL, credentials ---------------------------------------------------------------------------


def lost(server: FaultServer, operator: CrewKickoffOperator) -> TaskRun:
    """A first try whose answer was lost, at a service that may have taken it."""
    server.on(POST, NoReply(RESET), STARTED)
    task_run = TaskRun()
    with pytest.raises(AirflowException):
        run(operator, task_run)
    return task_run


@pytest.mark.row("N22")
@pytest.mark.parametrize("on_unknown_outcome", ["fail", "retry"])
@pytest.mark.parametrize("change", ["token", "header", "base URL"])
def test_nothing_is_sent_again_under_another_principal(
    server: FaultServer, connect: Connect, change: str, on_unknown_outcome: str
) -> None:
    connect(server.url, idempotency_keys=True)
    operator = kickoff(on_unknown_outcome=on_unknown_outcome)
    task_run = lost(server, operator)
    changed = {
        "token": {"token": "another-token-of-somebody"},
        "header": {"headers": {"X-User": "somebody else"}},
        "base URL": {"url": f"{server.url}/other"},
    }[change]
    connect(**{"url": server.url, "idempotency_keys": True, **changed})
    with pytest.raises(CrewTaskFailed, match=f"outcome is unknown.*{change}"):
        run(operator, task_run.retry())
    assert len([request for request in server.requests if request.method == "POST"]) == 1
    connect(server.url, idempotency_keys=True)
    assert run(operator, task_run.retry()) == "k-1"
    assert len({request.headers["idempotency-key"] for request in server.sent(POST)}) == 1


@pytest.mark.row("N22")
def test_a_rotated_credential_of_a_webhook_leaves_the_outcome_unknown(server: FaultServer, connect: Connect) -> None:
    connect(server.url, idempotency_keys=True)
    connect("https://hooks.example", token="first-token-of-the-webhook", conn_id="inbox")
    operator = kickoff(webhooks=Webhooks(human_input=HumanInputWebhook("https://hooks.example", conn_id="inbox")))
    task_run = lost(server, operator)
    connect("https://hooks.example", token="second-token-of-the-webhook", conn_id="inbox")
    with pytest.raises(CrewTaskFailed, match=r"outcome is unknown.*credential of a webhook"):
        run(operator, task_run.retry())
    assert len(server.sent(POST)) == 1
    assert "token-of-the-webhook" not in str(task_run.store.kept)


@pytest.mark.row("N22")
def test_the_refusal_of_a_changed_request_settles_nothing(server: FaultServer, connect: Connect) -> None:
    connect(server.url, idempotency_keys=True)
    task_run = lost(server, kickoff(on_unknown_outcome="retry"))
    server.on(POST, Reply(status=422, body={"detail": "Idempotency-Key was given before, with another body"}))
    for inputs in ({"topic": "other"}, {"topic": "third"}):
        with pytest.raises(AirflowException, match=r"try 1 sent at .* is unknown") as error:
            run(kickoff(on_unknown_outcome="retry", inputs=inputs), task_run.retry())
        assert "No execution was started" not in str(error.value)
    with pytest.raises(CrewTaskFailed, match="outcome is unknown"):
        run(kickoff(inputs={"topic": "fourth"}), task_run.retry())


@pytest.mark.row("N22", "N11")
def test_without_keys_a_refusal_says_nothing_of_the_first_kickoff(server: FaultServer) -> None:
    operator = kickoff(on_unknown_outcome="retry")
    task_run = lost(server, operator)
    server.on(POST, Reply(status=422, body={"detail": "Missing inputs: tone"}))
    for _ in range(2):
        with pytest.raises(CrewTaskFailed, match=r"Missing inputs: tone.*try 1 sent at .* is unknown"):
            run(operator, task_run.retry())


@pytest.mark.row("N22", "N11")
@pytest.mark.parametrize("then", [False, True])
def test_a_kickoff_is_not_resent_after_the_key_setting_changed(
    server: FaultServer, connect: Connect, then: bool
) -> None:
    connect(server.url, idempotency_keys=then)
    task_run = lost(server, kickoff())
    connect(server.url, idempotency_keys=not then)
    with pytest.raises(CrewTaskFailed, match="its outcome is unknown"):
        run(kickoff(), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N22")
def test_a_retry_of_a_keyless_kickoff_is_a_separate_kickoff(server: FaultServer, connect: Connect) -> None:
    task_run = lost(server, kickoff(on_unknown_outcome="retry"))
    connect(server.url, idempotency_keys=True)
    server.on(POST, Reply(status=429), {"kickoff_id": "k-2"})
    with pytest.raises(AirflowException, match=r"try 1 sent at .* is unknown"):
        run(kickoff(on_unknown_outcome="retry"), task_run.retry())
    with pytest.raises(CrewTaskFailed, match="its outcome is unknown"):
        run(kickoff(), task_run.retry())
    assert len(server.sent(POST)) == 2


@pytest.mark.row("N22")
def test_a_retrys_refused_preflight_does_not_deny_an_earlier_start(server: FaultServer, connect: Connect) -> None:
    connect(server.url, idempotency_keys=True)
    task_run = lost(server, kickoff())
    server.on("GET /inputs", Reply(status=401, body={"detail": "Invalid token"}))
    with pytest.raises(CrewTaskFailed, match=r"401.*try 1 sent at .* is unknown") as error:
        run(kickoff(), task_run.retry())
    assert "No execution was started" not in str(error.value)


# --- other inputs while the first execution runs ------------------------------------------------------------


@pytest.mark.row("A16")
@pytest.mark.parametrize("cancel_on_kill", [True, False])
@pytest.mark.parametrize("state", [RUNNING, {"state": "NOT FOUND", "status": "?", "result": None}, 503])
def test_changed_inputs_start_nothing_while_the_first_execution_may_run(
    server: FaultServer, cancel_on_kill: bool, state: Any
) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    server.on(POLL, state).on(STOP, 405)
    changed = {"inputs": {"topic": "other"}, "cancel_on_kill": cancel_on_kill}
    with pytest.raises(AirflowException, match=r"request has changed.*k-1.*No second execution") as error:
        run(kickoff(**changed), task_run.retry())
    assert not isinstance(error.value, CrewTaskFailed)
    assert len(server.sent(POST)) == 1
    server.on(POLL, {"status": "completed", "result": {"output": "x"}})
    assert run(kickoff(**changed), task_run.retry()) == "k-2"


@pytest.mark.row("A16")
def test_the_first_execution_is_stopped_and_a_new_one_started(server: FaultServer) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    server.on(STOP, {"status": "stopped"})
    assert run(kickoff(inputs={"topic": "other"}), task_run.retry()) == "k-2"
    assert len(server.sent(STOP)) == 1


@pytest.mark.row("A16")
@pytest.mark.parametrize("status", ["error", "failed"])
def test_a_stop_that_reports_an_error_starts_no_second_execution(server: FaultServer, status: str) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    server.on(STOP, {"status": status, "message": "could not stop"})
    with pytest.raises(AirflowException, match=r"k-1 could not be stopped.*No second execution"):
        run(kickoff(inputs={"topic": "other"}), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A16")
@pytest.mark.parametrize("asked_for", ["a clear", "on_unknown_outcome"])
def test_two_at_once_are_started_where_that_is_asked_for(server: FaultServer, asked_for: str) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    server.on(STOP, 405)
    outcome = "retry" if asked_for == "on_unknown_outcome" else "fail"
    changed = kickoff(inputs={"topic": "other"}, on_unknown_outcome=outcome)
    assert run(changed, task_run.clear() if asked_for == "a clear" else task_run.retry()) == "k-2"


@pytest.mark.row("A16")
@pytest.mark.parametrize("again", ["retry", "clear"])
def test_the_preflight_comes_before_the_first_execution_is_stopped(server: FaultServer, again: str) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    server.on("GET /inputs", {"inputs": ["topic"], "required": ["topic"]}).on(STOP, {"status": "stopped"})
    with pytest.raises(CrewTaskFailed, match=r"Missing inputs: topic.*execution k-1, which try 1 started"):
        run(kickoff(inputs={"title": "AI"}), getattr(task_run, again)())
    assert server.sent(STOP) == []


# --- killed during the POST, or unable to record ------------------------------------------------------------


@pytest.mark.row("A15")
def test_a_task_killed_during_the_post_logs_its_time(server: FaultServer, log_text: LogText) -> None:
    operator = kickoff(check_inputs=False)

    def killed(*_: Any) -> None:
        operator.on_kill()
        raise KeyboardInterrupt

    def signalled(request: Any) -> NoReply:
        os.kill(os.getpid(), signal.SIGTERM)
        return NoReply(SILENCE)

    server.on(POST, signalled)
    before = signal.signal(signal.SIGTERM, killed)
    try:
        with pytest.raises(KeyboardInterrupt):
            operator.execute(TaskRun().context())
    finally:
        signal.signal(signal.SIGTERM, before)
    log = log_text()
    assert "killed while a kickoff sent at 20" in log
    assert "outcome is unknown" in log


@pytest.mark.row("A5", "A15")
def test_a_task_that_is_killed_before_the_post_sends_none(server: FaultServer) -> None:
    """Airflow only calls `on_kill`; the process continues for some seconds."""
    operator = kickoff()

    def killed(request: Any) -> Any:
        operator.on_kill()
        return {"inputs": ["topic"]}

    server.on("GET /inputs", killed)
    with pytest.raises(CrewTryFailed, match=r"was killed before its kickoff was sent\. No execution was started"):
        operator.execute(TaskRun().context())
    assert server.sent(POST) == []


@pytest.mark.row("A15")
def test_a_task_killed_before_the_record_logs_the_execution_id(
    server: FaultServer, log_text: LogText, a_memory: Any
) -> None:
    task_run, operator = TaskRun(), kickoff(check_inputs=False, cancel_on_kill=False)
    store = a_memory
    keep = store.set

    def killed(key: str, value: Any, **more: Any) -> None:
        keep(key, value, **more)
        if '"kickoff_id"' in value:
            operator.on_kill()
            raise KeyboardInterrupt

    store.set = killed
    with pytest.raises(KeyboardInterrupt):
        operator.execute(task_run.context())
    assert "was killed, and execution k-1 may still be running" in log_text()


@pytest.mark.row("A15")
def test_a_retry_knows_an_id_despite_one_failed_write(
    server: FaultServer, a_memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on(POLL, {"status": "error", "error": "no ink"}).on(
        "GET /status/k-2", {"status": "completed", "result": "b"}
    )
    store, failures = a_memory.set, iter([True])

    def fail_once(key: str, value: Any, **more: Any) -> None:
        if '"kickoff_id"' in value and next(failures, False):
            raise OSError("the database is away")
        store(key, value, **more)

    monkeypatch.setattr(a_memory, "set", fail_once)
    task_run = TaskRun()
    with pytest.raises(AirflowException, match="A retry of this task starts a new execution"):
        run(kickoff(wait_for_completion=True), task_run)
    assert run(kickoff(wait_for_completion=True), task_run.retry())["kickoff_id"] == "k-2"


@pytest.mark.row("A15")
def test_an_unrecordable_id_is_logged_and_kept_as_xcom(
    server: FaultServer, log_text: LogText, full: Callable[[TaskRun], None]
) -> None:
    task_run = TaskRun()
    full(task_run)
    assert run(kickoff(), task_run) == "k-1"
    assert task_run.xcom["kickoff_id"] == "k-1"
    log = log_text()
    assert "The service accepted the request for execution k-1, but that could not be recorded" in log
    assert "the database is away" in log


@pytest.mark.row("A15")
def test_a_try_after_an_unrecorded_id_starts_nothing(server: FaultServer, full: Callable[[TaskRun], None]) -> None:
    task_run = TaskRun()
    full(task_run)
    die_after_recording(task_run, kickoff())
    with pytest.raises(CrewTaskFailed, match="outcome is unknown"):
        run(kickoff(), task_run.retry())
    assert len(server.sent(POST)) == 1


# --- the record is gone ---------------------------------------------------------------------------------------

GONE = (
    r"The record of this task, an Airflow Variable, is missing, although it was stored\. "
    "A retry or a clear would start another execution"
)


def waiting_without_its_record(a_memory: Any, **more: Any) -> tuple[TaskRun, Callable[..., Any]]:
    """A task that has deferred, and how it resumes after its record was deleted."""
    task_run, operator = TaskRun(), kickoff(wait_for_completion=True, deferrable=True, **more)
    with pytest.raises(TaskDeferred) as waits:
        fresh(operator).execute(task_run.context())
    waiting = json.loads(json.dumps(waits.value.kwargs))
    a_memory.kept.clear()
    task_run.store.kept.clear()  # where Airflow 3.3 has a copy

    def resume(event: Any = None, method: str = "execute_complete") -> Any:
        given = {**waiting, "event": event} if event is not None else {"error": "Trigger timeout"}
        return fresh(operator).resume_execution(method, given, task_run.context())

    return task_run, resume


@pytest.mark.row("A52")
@pytest.mark.parametrize("kind", [GAVE_UP, TIMEOUT, "no event"])
def test_a_wait_without_its_record_promises_no_retry(server: FaultServer, a_memory: Any, kind: str) -> None:
    server.on(STOP, Reply(status=503))
    _, resume = waiting_without_its_record(a_memory)
    event = {"nothing": "readable"} if kind == "no event" else Outcome(kind, "k-1", "The wait is over").to_event()
    with pytest.raises(CrewTaskFailed, match=GONE) as error:
        resume(event)
    assert "retry of this task" not in str(error.value).lower()


@pytest.mark.row("A52")
def test_airflows_own_timeout_without_a_record_promises_no_retry(server: FaultServer, a_memory: Any) -> None:
    _, resume = waiting_without_its_record(a_memory)
    with pytest.raises(CrewTaskFailed, match=GONE):
        resume(method="__fail__")


@pytest.mark.row("A52")
def test_an_unwritten_output_without_a_record_promises_no_retry(
    server: FaultServer, a_memory: Any, tmp_path: Path
) -> None:
    server.on(POLL, RUNNING, SPEC.completed)
    blocked = tmp_path / "a file"
    _, resume = waiting_without_its_record(a_memory, output_to=f"file://{blocked}/output.json")
    blocked.write_text("in the way of the folder")
    with pytest.raises(CrewTaskFailed, match=GONE):
        resume(Outcome(COMPLETED, "k-1").to_event())


@pytest.mark.row("A52")
def test_a_completed_wait_needs_no_record(server: FaultServer, a_memory: Any) -> None:
    server.on(POLL, RUNNING, SPEC.completed)
    _, resume = waiting_without_its_record(a_memory)
    assert resume(Outcome(COMPLETED, "k-1").to_event())["state"] == "completed"
