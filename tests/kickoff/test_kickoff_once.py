"""A kickoff is sent at most once: every end of the POST, and what the next try makes of it."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from faults.dialects import Dialect
from faults.server import FaultServer
from faults.wire import CLOSE, RESET, SILENCE, NoReply, Reply
from simulated_airflow import TOKEN, Connect, TaskRun, run

from airflow_crew_provider.compat import version
from airflow_crew_provider.kickoff import start
from airflow_crew_provider.models import HumanInputWebhook, Webhooks
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")
POST = "POST /kickoff"
POLL = "GET /status/k-1"
STARTED = {"kickoff_id": "k-1"}
LOST: dict[str, Any] = {
    "reset": NoReply(RESET),
    "closed": NoReply(CLOSE),
    "silence": NoReply(SILENCE),
    "502": Reply(status=502, body="<html>Bad Gateway</html>"),
    "503": Reply(status=503),
    "504": Reply(status=504),
    "500": Reply(status=500, body="Internal Server Error"),
    "no id": Reply(body={"status": "ok"}),
    "unreadable": Reply(body="<html>ok</html>"),
    "half an answer": Reply(body=STARTED, stop_after=5, end=RESET),
    "a redirect": Reply(status=307, headers={"Location": "/other"}),
    "408": Reply(status=408),
    "409": Reply(status=409, body={"detail": "there is one already"}),
    "405 as a page": Reply(status=405, body="<html>Not Allowed</html>"),
}
REFUSED = {
    "400": Reply(status=400, body={"detail": "inputs must be an object"}),
    "401": Reply(status=401, body={"detail": "Invalid token"}),
    "403": Reply(status=403, body={"detail": "not allowed"}),
    "404": Reply(status=404, body={"detail": "no crew here"}),
    "422": Reply(status=422, body={"detail": "Missing inputs: tone"}),
    **{code: Reply(status=int(code), body={"detail": "no"}) for code in ("405", "410", "413", "415", "425", "431")},
    "413 as a page": Reply(status=413, body="<html>413 Request Entity Too Large</html>"),
    "429": Reply(status=429, body={"detail": "slow down"}),
    "quota": Reply(status=403, body={"detail": "Monthly execution limit reached"}),
}


def kickoff(**more: Any) -> CrewKickoffOperator:
    options = {"task_id": "kickoff", "inputs": {"topic": "AI"}, "poll_interval": 0.05, "deferrable": False}
    return CrewKickoffOperator(**{**options, **more})


@pytest.fixture(autouse=True)
def a_crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": ["topic"]})


def test_a_kickoff_returns_the_id_and_names_its_origin(server: FaultServer) -> None:
    server.on(POST, STARTED)
    task_run = TaskRun()
    assert run(kickoff(meta={"team": "news"}), task_run) == "k-1"
    assert task_run.xcom["kickoff_id"] == "k-1"
    (request,) = server.sent(POST)
    airflow = {"dag_id": "dag", "run_id": "run", "task_id": "kickoff", "map_index": -1}
    assert request.json == {"inputs": {"topic": "AI"}, "meta": {"team": "news", "airflow": airflow}}


@pytest.mark.row("N11")
@pytest.mark.parametrize("idempotency_keys", [False, True])
@pytest.mark.parametrize("on_unknown_outcome", ["fail", "retry"])
@pytest.mark.parametrize("fault", LOST)
def test_a_lost_kickoff_is_repeated_only_if_safe_or_requested(
    server: FaultServer, connect: Connect, fault: str, on_unknown_outcome: str, idempotency_keys: bool
) -> None:
    patience = {"kickoff_timeout": 2.0} if fault == "silence" else {}
    connect(server.url, idempotency_keys=idempotency_keys, **patience)
    server.on(POST, LOST[fault], STARTED)
    task_run, operator = TaskRun(), kickoff(on_unknown_outcome=on_unknown_outcome)
    may_retry = idempotency_keys or on_unknown_outcome == "retry"
    with pytest.raises(AirflowException) as error:
        run(operator, task_run)
    assert isinstance(error.value, CrewTaskFailed) != may_retry
    assert "unknown" in str(error.value)
    assert len(server.sent(POST)) == 1
    if may_retry:
        assert run(operator, task_run.retry()) == "k-1"
        first, second = (request.headers.get("idempotency-key") for request in server.sent(POST))
        assert first == second
        assert (first is not None) == idempotency_keys
        return
    assert "none is sent" in str(error.value)
    assert "meta.airflow" in str(error.value)
    with pytest.raises(CrewTaskFailed, match="its outcome is unknown"):
        run(operator, task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N11", "A1")
def test_a_worker_death_before_the_record_leaves_an_unknown_outcome(
    server: FaultServer, a_memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on(POST, STARTED)
    task_run = TaskRun()
    store = a_memory
    keep = store.set

    def die(key: str, value: Any, **more: Any) -> None:
        if '"kickoff_id"' in value:
            raise KeyboardInterrupt
        keep(key, value, **more)

    with monkeypatch.context() as patch:
        patch.setattr(store, "set", die)
        with pytest.raises(KeyboardInterrupt):
            run(kickoff(), task_run)
    with pytest.raises(CrewTaskFailed, match="outcome is unknown"):
        run(kickoff(), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N11")
def test_a_clear_after_an_unknown_outcome_starts_a_new_execution(
    server: FaultServer, log_text: Callable[[], str]
) -> None:
    server.on(POST, NoReply(RESET), {"kickoff_id": "k-2"})
    task_run = TaskRun()
    with pytest.raises(CrewTaskFailed):
        run(kickoff(), task_run)
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert "unknown outcome" in log_text()


@pytest.mark.row("N12")
@pytest.mark.parametrize("fault", REFUSED)
def test_a_refusal_started_nothing_and_a_later_try_sends_again(server: FaultServer, fault: str) -> None:
    server.on(POST, REFUSED[fault], STARTED)
    task_run = TaskRun()
    with pytest.raises(AirflowException, match="No execution was started") as error:
        run(kickoff(), task_run)
    assert isinstance(error.value, CrewTaskFailed) == (fault not in ("425", "429", "quota"))
    if fault in ("401", "403"):
        assert "'crew_default'" in str(error.value)
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 2


@pytest.mark.row("N10")
def test_a_refused_connection_leaves_the_task_to_its_retries(server: FaultServer, connect: Connect) -> None:
    task_run = TaskRun()
    with FaultServer(listening=False) as closed:
        connect(closed.url)
        with pytest.raises(AirflowException, match="No execution was started") as error:
            run(kickoff(check_inputs=False), task_run)
    assert not isinstance(error.value, CrewTaskFailed)
    connect(server.url)
    server.on(POST, STARTED)
    assert run(kickoff(check_inputs=False), task_run.retry()) == "k-1"


def test_a_connection_that_is_missing_is_no_unknown_outcome(
    server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on(POST, STARTED)
    webhooks = Webhooks(human_input=HumanInputWebhook("https://inbox.example", conn_id="inbox"))
    task_run, operator = TaskRun(), kickoff(webhooks=webhooks, check_inputs=False)
    with pytest.raises(Exception, match="inbox"):
        run(operator, task_run)
    connect("https://inbox.example", token="the-token-of-the-inbox", conn_id="inbox")
    assert run(operator, task_run.retry()) == "k-1"
    sent = server.sent(POST)[0].json["humanInputWebhook"]
    assert sent["authentication"] == {"strategy": "bearer", "token": "the-token-of-the-inbox"}


# --- the next try -------------------------------------------------------------------------------------------


@pytest.mark.row("A2")
@pytest.mark.parametrize("state", ["running", "completed", "unknown"])
def test_a_retry_takes_up_the_execution_that_was_started(
    server: FaultServer, dialect: Dialect, state: str, log_text: Callable[[], str]
) -> None:
    server.on(POST, STARTED).on(POLL, getattr(dialect, state))
    task_run = TaskRun()
    _started_and_died(task_run)
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1
    assert task_run.xcom["kickoff_id"] == "k-1"
    assert "reattaching to it" in log_text()


def _started_and_died(task_run: TaskRun) -> None:
    """A worker that dies right after the record of the answer."""
    context = task_run.context()

    def die(key: str, value: Any) -> None:
        raise KeyboardInterrupt

    context["ti"].xcom_push = die
    with pytest.raises(KeyboardInterrupt):
        kickoff().execute(context)


def test_a_retry_of_a_failed_execution_starts_another(server: FaultServer, dialect: Dialect) -> None:
    server.on(POST, STARTED, {"kickoff_id": "k-2"}).on(POLL, dialect.failed).on("GET /status/k-2", dialect.completed)
    task_run, operator = TaskRun(), kickoff(wait_for_completion=True)
    with pytest.raises(AirflowException, match=r"ValueError: bad input.*retry of this task starts a new") as error:
        run(operator, task_run)
    assert not isinstance(error.value, CrewTaskFailed)
    assert run(operator, task_run.retry())["kickoff_id"] == "k-2"
    assert len(server.sent(POST)) == 2


@pytest.mark.row("A7")
@pytest.mark.parametrize("cancel_on_kill", [True, False])
def test_a_clear_starts_anew_and_logs_the_old_executions_fate(
    server: FaultServer, dialect: Dialect, log_text: Callable[[], str], cancel_on_kill: bool
) -> None:
    server.on(POST, STARTED, {"kickoff_id": "k-2"}).on(POLL, dialect.running).on(
        "POST /stop/k-1", {"status": "stopped"}
    )
    task_run = TaskRun()
    _started_and_died(task_run)
    assert run(kickoff(cancel_on_kill=cancel_on_kill), task_run.clear()) == "k-2"
    assert len(server.sent("POST /stop/k-1")) == int(cancel_on_kill)
    log = log_text()
    assert "The task was cleared" in log
    assert ("Execution k-1 was stopped" if cancel_on_kill else "The earlier execution k-1 is running") in log


@pytest.mark.row("A7", "N39")
@pytest.mark.parametrize("unknown", [Reply(status=503), Reply(body="<html>Back soon</html>")], ids=["503", "a page"])
def test_a_clear_stops_the_old_execution_through_an_outage(
    server: FaultServer, dialect: Dialect, log_text: Callable[[], str], unknown: Reply
) -> None:
    server.on(POST, STARTED, {"kickoff_id": "k-2"}).on(POLL, dialect.running)
    server.on("POST /stop/k-1", unknown, {"status": "stopped"})
    task_run = TaskRun()
    _started_and_died(task_run)
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert len(server.sent("POST /stop/k-1")) == 2
    assert "The task was cleared. Execution k-1 was stopped. Starting a new execution" in log_text()


def test_a_changed_kickoff_started_regardless_stops_the_first_patiently(
    server: FaultServer, dialect: Dialect, log_text: Callable[[], str]
) -> None:
    server.on(POST, STARTED, {"kickoff_id": "k-2"}).on(POLL, dialect.running)
    server.on("POST /stop/k-1", Reply(status=503), {"status": "stopped"})
    task_run = TaskRun()
    _started_and_died(task_run)
    assert run(kickoff(on_unknown_outcome="retry", **CHANGED), task_run.retry()) == "k-2"
    assert "The request has changed. Execution k-1 was stopped. Starting a new execution" in log_text()


@pytest.mark.row("A7")
def test_a_clear_tells_that_the_old_execution_has_ended(
    server: FaultServer, dialect: Dialect, log_text: Callable[[], str]
) -> None:
    server.on(POST, STARTED, {"kickoff_id": "k-2"}).on(POLL, dialect.running, dialect.completed)
    server.on("POST /stop/k-1", 409)
    task_run = TaskRun()
    _started_and_died(task_run)
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert "The task was cleared. Execution k-1 has ended. Starting a new execution" in log_text()


@pytest.mark.row("A7")
def test_a_clear_after_success_starts_a_new_execution(server: FaultServer) -> None:
    server.on(POST, STARTED, {"kickoff_id": "k-2"}).on(POLL, {"status": "completed", "result": {"output": "x"}})
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert len(server.sent(POST)) == 3
    assert server.sent("POST /stop/k-1") == []


# --- an earlier execution that the service does not know ---

CHANGED = {"inputs": {"topic": "other"}}
NO_SECOND = "No second execution is started while the first may still be running"


def unknown_for(monkeypatch: pytest.MonkeyPatch, *, long_enough: bool) -> None:
    monkeypatch.setattr(start, "GRACE_FOR_UNKNOWN_ID", 0.0 if long_enough else 300.0)


@pytest.fixture
def not_found(server: FaultServer) -> TaskRun:
    """Return a task whose first try died, at a service that does not know its execution any more."""
    server.on(POST, STARTED, {"kickoff_id": "k-2"}).on(POLL, 404).on("POST /stop/k-1", 404)
    task_run = TaskRun()
    _started_and_died(task_run)
    return task_run


def refused(task_run: TaskRun, said: str = NO_SECOND, **more: Any) -> None:
    with pytest.raises(AirflowException, match=said) as error:
        run(kickoff(**{**CHANGED, **more}), task_run.retry())
    assert not isinstance(error.value, CrewTaskFailed)


@pytest.mark.row("A7", "N35")
def test_long_unknown_executions_count_as_over_after_a_stop_attempt(
    server: FaultServer, not_found: TaskRun, monkeypatch: pytest.MonkeyPatch, log_text: Callable[[], str]
) -> None:
    for _ in range(2):
        refused(not_found, rf"does not know it, first noticed at 20.* after 300 s, it counts as ended.*{NO_SECOND}")
    assert len(server.sent("POST /stop/k-1")) == 2
    assert len(server.sent(POST)) == 1
    unknown_for(monkeypatch, long_enough=True)
    assert run(kickoff(**CHANGED), not_found.retry()) == "k-2"
    assert "The request has changed" in log_text()


@pytest.mark.row("N35")
@pytest.mark.parametrize("end", ["first", "last"])
@pytest.mark.parametrize("inputs", [404, 503, 401])
def test_a_404_beside_a_failed_get_inputs_is_not_believed(
    server: FaultServer, not_found: TaskRun, monkeypatch: pytest.MonkeyPatch, end: str, inputs: int
) -> None:
    quiet = {"check_inputs": False}
    if end == "last":
        refused(not_found, **quiet)
    unknown_for(monkeypatch, long_enough=True)
    server.on("GET /inputs", inputs)
    refused(not_found, "does not answer GET /inputs", **quiet)
    assert len(server.sent(POST)) == 1
    assert server.sent("POST /stop/k-1")


@pytest.mark.row("N35")
@pytest.mark.parametrize("seen", [{"status": "running"}, {"state": "NOT FOUND", "status": "?", "result": None}, 503])
def test_between_two_404s_a_status_restarts_and_errors_prove_nothing(
    server: FaultServer, not_found: TaskRun, monkeypatch: pytest.MonkeyPatch, seen: Any
) -> None:
    refused(not_found)
    clock = SimpleNamespace(**{**vars(time), "time": lambda: time.time() + 301})
    monkeypatch.setattr(start, "time", clock)
    server.on(POLL, seen)
    refused(not_found)
    server.on(POLL, 404)
    if seen != 503:
        refused(not_found, "after 300 s, it counts as ended")
        assert len(server.sent(POST)) == 1
    else:
        assert run(kickoff(**CHANGED), not_found.retry()) == "k-2"


@pytest.mark.row("N35", "N29")
@pytest.mark.parametrize("moved", [{"token": "another-token-of-somebody"}, {"path": "/other"}])
def test_a_404_for_another_token_or_place_says_nothing(
    server: FaultServer, not_found: TaskRun, monkeypatch: pytest.MonkeyPatch, connect: Connect, moved: Any
) -> None:
    refused(not_found)
    unknown_for(monkeypatch, long_enough=True)
    path = moved.get("path", "")
    server.on(f"GET {path}/inputs", {"inputs": ["topic"]}).on(f"GET {path}/status/k-1", 404)
    server.on(f"POST {path}/stop/k-1", 404)
    connect(f"{server.url}{path}", **{name: value for name, value in moved.items() if name == "token"})
    refused(not_found, "or with its current token")
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N35")
def test_without_a_stop_a_404_is_not_believed(
    server: FaultServer, not_found: TaskRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_for(monkeypatch, long_enough=True)
    for _ in range(2):
        refused(not_found, cancel_on_kill=False)
    assert server.sent("POST /stop/k-1") == []


@pytest.mark.row("A16", "N6")
@pytest.mark.parametrize("cancel_on_kill", [True, False])
def test_an_execution_briefly_not_found_is_not_over(
    server: FaultServer, not_found: TaskRun, monkeypatch: pytest.MonkeyPatch, cancel_on_kill: bool
) -> None:
    for long_enough in (False, True):
        unknown_for(monkeypatch, long_enough=long_enough)
        server.on(POLL, 404, {"status": "running"})
        refused(not_found, cancel_on_kill=cancel_on_kill)
    assert len(server.sent(POST)) == 1
    assert len(server.sent("POST /stop/k-1")) == (2 if cancel_on_kill else 0)


@pytest.mark.row("A7", "N35")
def test_a_clear_stops_even_an_execution_not_found(server: FaultServer, not_found: TaskRun) -> None:
    assert run(kickoff(), not_found.clear()) == "k-2"
    assert len(server.sent("POST /stop/k-1")) == 1


@pytest.mark.row("A7", "N6")
@pytest.mark.since_airflow("3.3")  # before, nothing is remembered after the task's end
def test_a_clear_stops_even_an_execution_briefly_not_found(
    server: FaultServer,
) -> None:
    server.on(POST, STARTED, {"kickoff_id": "k-2"}).on(POLL, 404, {"status": "running"})
    server.on("POST /stop/k-1", {"status": "stopped"})
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert len(server.sent("POST /stop/k-1")) == 1


@pytest.mark.row("N11")
@pytest.mark.parametrize("on_unknown_outcome", ["fail", "retry"])
def test_a_changed_request_never_reuses_an_unknown_kickoffs_key(
    server: FaultServer, connect: Connect, on_unknown_outcome: str
) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POST, NoReply(RESET), {"kickoff_id": "k-2"})
    task_run = TaskRun()
    with pytest.raises(AirflowException):
        run(kickoff(on_unknown_outcome=on_unknown_outcome), task_run)
    changed = kickoff(inputs={"topic": "other"}, on_unknown_outcome=on_unknown_outcome)
    if on_unknown_outcome == "fail":
        with pytest.raises(CrewTaskFailed, match="a different request"):
            run(changed, task_run.retry())
        assert len(server.sent(POST)) == 1
    else:
        assert run(changed, task_run.retry()) == "k-2"
        first, second = (request.headers["idempotency-key"] for request in server.sent(POST))
        assert first != second


@pytest.mark.parametrize("swept", [True, False], ids=["Airflow 3", "Airflow 2"])
def test_before_airflow_3_3_variables_remember_until_done_or_swept(
    server: FaultServer, variables: Any, monkeypatch: pytest.MonkeyPatch, swept: bool
) -> None:
    monkeypatch.setattr(version, "RELEASE", (3, 2) if swept else (2, 11))
    server.on(POST, NoReply(RESET), STARTED)
    task_run = TaskRun()
    with pytest.raises(CrewTaskFailed):
        run(kickoff(), task_run)
    with pytest.raises(CrewTaskFailed, match="outcome is unknown"):
        run(kickoff(), task_run.retry())
    assert len(variables.kept) == 2
    assert run(kickoff(on_unknown_outcome="retry"), task_run.retry()) == "k-1"
    of_task = [each for each in variables.kept if not each.startswith("crew_execution_")]
    assert len(of_task) == 2 * swept, "its record, and the copy of its POST"


# --- waiting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_kickoff_waits_for_the_completed_record_past_a_person(
    server: FaultServer, dialect: Dialect, deferrable: bool
) -> None:
    pending = {"status": "pending", "task_id": "t", "task_output": "draft"}
    server.on(POST, STARTED).on(POLL, dialect.running, pending, dialect.completed)
    record = run(kickoff(wait_for_completion=True, deferrable=deferrable))
    assert (record["state"], record["output"], record["execution_id"]) == ("completed", "the output", "k-1")


@pytest.mark.row("A6")
@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("cancel_on_kill", [False, True])
def test_a_timeout_reports_the_fate_of_the_execution(
    server: FaultServer, dialect: Dialect, deferrable: bool, cancel_on_kill: bool
) -> None:
    server.on(POST, STARTED).on(POLL, dialect.running).on("POST /stop/k-1", {"status": "stopped"})
    operator = kickoff(
        wait_for_completion=True,
        deferrable=deferrable,
        timeout=datetime.timedelta(seconds=0.4),
        cancel_on_kill=cancel_on_kill,
    )
    with pytest.raises(AirflowException, match="The wait timed out") as error:
        run(operator)
    said = str(error.value)
    fate = "Execution k-1 was stopped" if cancel_on_kill else "A retry of this task waits for it again"
    assert fate in said
    assert ("may still be active" in said) != cancel_on_kill
    assert len(server.sent("POST /stop/k-1")) == int(cancel_on_kill)
    assert isinstance(error.value, AirflowFailException) == cancel_on_kill


@pytest.mark.row("A6")
def test_a_retry_waits_again_for_an_execution_unstopped_at_timeout(server: FaultServer, dialect: Dialect) -> None:
    server.on(POST, STARTED).on(POLL, dialect.running).on("POST /stop/k-1", 404)
    operator = kickoff(wait_for_completion=True, deferrable=False, timeout=0.2)
    with pytest.raises(AirflowException, match="could not be stopped") as error:
        run(operator)
    assert not isinstance(error.value, AirflowFailException)
    assert "A retry of this task waits for it again" in str(error.value)


LOST_STOP = "POST /stop/k-1"


@pytest.mark.row("A6")
@pytest.mark.parametrize("after", ["stopped", "failed", "cannot stop", "stop lost again", "completed"])
def test_after_a_timeout_stop_without_response_a_retry_starts_nothing(
    server: FaultServer, dialect: Dialect, after: str
) -> None:
    server.on(POST, STARTED).on(POLL, dialect.running).on(LOST_STOP, NoReply(RESET))
    operator = kickoff(wait_for_completion=True, deferrable=False, timeout=0.2)
    task_run = TaskRun()
    with pytest.raises(AirflowException, match="A retry of this task stops it, unless it has completed") as error:
        run(operator, task_run)
    assert not isinstance(error.value, AirflowFailException)

    state = {"failed": dialect.failed, "completed": dialect.completed}.get(after, dialect.running)
    reply = {"stopped": {"status": "stopped"}, "cannot stop": 404}.get(after, NoReply(RESET))
    server.on(POLL, state).on(LOST_STOP, reply)
    again = task_run.retry()
    if after == "completed":
        assert run(operator, again)["state"] == "completed"
    elif after in ("stopped", "failed"):
        fate = "was stopped" if after == "stopped" else "has ended"
        with pytest.raises(
            AirflowFailException, match=f"An earlier try failed: .* Execution k-1 {fate}.*so this task is not retried"
        ):
            run(operator, again)
    else:
        said = "waits for it again" if after == "cannot stop" else "A retry of this task stops it\\. Conn"
        with pytest.raises(AirflowException, match=said) as error:
            run(operator, again)
        assert not isinstance(error.value, AirflowFailException)
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A6", "A38")
@pytest.mark.parametrize(("retries", "stops"), [(2, 0), (0, 1)])
def test_only_the_last_try_stops_at_an_unrecorded_timeout(
    server: FaultServer, dialect: Dialect, a_memory: Any, retries: int, stops: int
) -> None:
    server.on(POST, STARTED).on(POLL, dialect.running).on(LOST_STOP, NoReply(RESET), {"status": "stopped"})
    task_run, a_memory.refused = TaskRun(retries=retries), '"timed_out"'
    operator = kickoff(wait_for_completion=True, deferrable=False, timeout=0.2)
    with pytest.raises(AirflowException, match="The wait timed out") as error:
        run(operator, task_run)
    assert isinstance(error.value, AirflowFailException) == bool(stops)
    assert len(server.sent(LOST_STOP)) == stops * 2
    if not stops:
        assert "may still be active. A retry of this task waits for it again" in str(error.value)
        server.on(POLL, dialect.completed)
        assert run(operator, task_run.retry())["kickoff_id"] == "k-1"
    assert len(server.sent(POST)) == 1


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "path"),
    [
        ({"when": datetime.datetime(2026, 1, 1)}, r"inputs\.when"),
        ({"a": [{"b": {1}}]}, r"inputs\.a\[0\]\.b"),
        ({"a": float("nan")}, r"inputs\.a"),
        ("text", "inputs: must be an object"),
        ({"id": "x"}, r"inputs\.id"),
    ],
)
def test_inputs_that_are_not_json_are_refused_with_their_path(server: FaultServer, inputs: Any, path: str) -> None:
    with pytest.raises(CrewTaskFailed, match=path):
        run(kickoff(inputs=inputs))
    assert server.requests == []


def test_the_key_airflow_of_meta_belongs_to_the_operator(server: FaultServer) -> None:
    with pytest.raises(CrewTaskFailed, match=r"meta\.airflow"):
        run(kickoff(meta={"airflow": {}}))
    assert server.requests == []


@pytest.mark.parametrize("field", ["token", "username", "password"])
def test_a_literal_credential_of_a_webhook_is_refused(field: str) -> None:
    for webhooks in (
        {"human_input": {"url": "https://x", field: "se-cret"}},
        Webhooks(human_input=HumanInputWebhook("https://x", **{field: "se-cret"})),
    ):
        with pytest.raises(ValueError, match="conn_id") as error:
            kickoff(webhooks=webhooks)
        assert "se-cret" not in str(error.value)


# --- preflight ----------------------------------------------------------------------------------------------


@pytest.mark.row("N12")
@pytest.mark.parametrize("known_by", ["the service", "the connection"])
def test_missing_inputs_are_found_before_anything_is_started(
    server: FaultServer, connect: Connect, known_by: str
) -> None:
    names = ["topic", "tone", "audience"]
    if known_by == "the service":
        server.on("GET /inputs", {"inputs": names, "required": names})
    else:
        server.on("GET /inputs", {"inputs": names})
        connect(server.url, kind="Crew")
    with pytest.raises(CrewTaskFailed, match="Missing inputs: tone, audience") as error:
        run(kickoff())
    assert "the crew asks for topic, tone, audience; given: topic" in str(error.value)
    assert server.sent(POST) == []


@pytest.mark.row("N12")
@pytest.mark.parametrize("status", [401, 403])
def test_a_preflight_that_is_refused_fails_and_names_the_connection(server: FaultServer, status: int) -> None:
    server.on("GET /inputs", Reply(status=status, body={"detail": f"bad token {TOKEN}"}))
    with pytest.raises(CrewTaskFailed, match="'crew_default'") as error:
        run(kickoff())
    assert TOKEN not in str(error.value)
    assert server.sent(POST) == []


@pytest.mark.row("N12")
def test_a_crewless_path_fails_at_once_naming_the_existing_crews(server: FaultServer) -> None:
    there = f"Nothing is here. The crews are at /crews/newsroom, /crews/{TOKEN}"
    server.on("GET /inputs", Reply(status=404, body={"detail": there}))
    with pytest.raises(CrewTaskFailed, match=r"The crews are at /crews/newsroom, /crews/\*\*\*\. Check") as error:
        run(kickoff())
    assert "No execution was started" in str(error.value)
    assert [request.target for request in server.requests] == ["/inputs"]


@pytest.mark.row("N12")
@pytest.mark.parametrize("answer", [404, Reply(status=404, body="no"), Reply(status=404, body={"detail": "x" * 9000})])
@pytest.mark.parametrize("check_inputs", [True, False])
def test_a_404_is_final_whatever_else_is_said(server: FaultServer, answer: Any, check_inputs: bool) -> None:
    server.on("GET /inputs", answer).on(POST, answer)
    with pytest.raises(CrewTaskFailed, match=r"returned 404: .*Host, including its path") as error:
        run(kickoff(check_inputs=check_inputs))
    assert len(str(error.value)) < 1000


@pytest.mark.row("N12")
@pytest.mark.parametrize(
    "fault",
    [500, 503, NoReply(RESET), Reply(body=[]), Reply(body={"inputs": [5]}), Reply(body={"inputs": None}), 204],
)
def test_any_other_preflight_failure_does_not_hold_up_the_kickoff(
    server: FaultServer, fault: Any, log_text: Callable[[], str]
) -> None:
    server.on("GET /inputs", fault).on(POST, STARTED)
    assert run(kickoff()) == "k-1"
    assert "could not be checked" in log_text()


def test_unrequested_inputs_cause_only_a_warning(server: FaultServer, log_text: Callable[[], str]) -> None:
    server.on("GET /inputs", {"inputs": []}).on(POST, STARTED)
    assert run(kickoff()) == "k-1"
    assert "did not ask for topic" in log_text()


def test_without_check_inputs_nothing_is_asked(server: FaultServer) -> None:
    server.on(POST, STARTED)
    run(kickoff(check_inputs=False))
    assert [request.method for request in server.requests] == ["POST"]


def test_no_token_stands_in_what_a_task_keeps(server: FaultServer) -> None:
    server.on(POST, NoReply(RESET))
    task_run = TaskRun()
    with pytest.raises(CrewTaskFailed) as error:
        run(kickoff(), task_run)
    assert TOKEN not in json.dumps([task_run.store.kept, task_run.xcom]) + repr(error.value) + repr(kickoff().__dict__)
