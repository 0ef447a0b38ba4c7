"""The rows of the fault matrix on the three ways of waiting: a worker that blocks, a triggerer, a sensor that pokes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from faults.dialects import LIVE, PENDING_SPEC, SPEC, Dialect
from faults.server import FaultServer
from faults.wire import RESET, SILENCE, NoReply, Reply
from simulated_airflow import PATHS, POKE, TOKEN, TRIGGERER, Connect, run, wait

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait.narrator import NOBODY_IS_ASKED
from airflow_crew_provider.wait.watch import COMPLETED, FAILED, GAVE_UP, PENDING, TIMEOUT

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
POLL = "GET /status/k-1"
GATEWAY = "<html><head><title>502 Bad Gateway</title></head><body><h1>Sorry</h1></body></html>"
path = pytest.mark.parametrize("path", PATHS)


@path
def test_a_wait_ends_with_the_completed_execution(path: str, server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, dialect.running, dialect.running, dialect.completed)
    assert wait(path).kind == COMPLETED


@path
def test_a_wait_ends_at_a_failed_execution_with_its_error(path: str, server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, dialect.running, dialect.failed)
    outcome = wait(path)
    assert outcome.kind == FAILED
    assert "ValueError: bad input" in outcome.message


@pytest.mark.row("N1")
@path
def test_a_wait_goes_through_a_burst_of_server_errors(
    path: str, server: FaultServer, dialect: Dialect, log_text: Callable[[], str]
) -> None:
    burst = [500, Reply(status=502, body=GATEWAY, headers={"Content-Type": "text/html"}), 503, 504]
    server.on(POLL, dialect.running, *burst, dialect.running, dialect.completed)
    assert wait(path).kind == COMPLETED
    assert "has failed 1 times since" in log_text()


@pytest.mark.row("N1")
@path
def test_a_permanently_down_service_is_given_up_without_hot_polling(
    path: str, server: FaultServer, impatient: None
) -> None:
    server.on(POLL, 503)
    outcome = wait(path)
    assert outcome.kind == GAVE_UP
    assert "503" in outcome.message
    assert "if it exists, it may still be active" in outcome.message
    assert len(server.requests) < 15


@pytest.mark.row("N2")
@path
@pytest.mark.parametrize("asked", ["1", "-5", "soon"])
def test_a_retry_after_is_honoured_and_nonsense_ignored(
    path: str, server: FaultServer, dialect: Dialect, asked: str
) -> None:
    server.on(POLL, Reply(status=429, body={}, headers={"Retry-After": asked}), dialect.completed)
    began = time.monotonic()
    assert wait(path).kind == COMPLETED
    assert time.monotonic() - began >= (1 if asked == "1" else 0)


@pytest.mark.row("N3")
@path
def test_resets_before_and_after_the_request_are_forgiven(path: str, server: FaultServer, dialect: Dialect) -> None:
    server.reset_at_connect = 1
    server.on(POLL, NoReply(RESET), Reply(body=dialect.completed, stop_after=9, end=RESET), dialect.completed)
    assert wait(path).kind == COMPLETED


@pytest.mark.row("N3")
@path
def test_a_service_that_is_not_up_yet_is_waited_for(path: str, connect: Connect, dialect: Dialect) -> None:
    import threading

    with FaultServer(listening=False) as late:
        late.on(POLL, dialect.completed)
        connect(late.url)
        threading.Timer(1.0, late.listen).start()
        assert wait(path).kind == COMPLETED


@pytest.mark.row("N4")
@path
def test_polls_without_a_whole_answer_time_out_and_are_forgiven(
    path: str, server: FaultServer, connect: Connect, dialect: Dialect
) -> None:
    connect(server.url, timeout=0.4)
    faults = [NoReply(SILENCE), Reply(body=dialect.completed, drip=0.2), Reply(body=b"{}", stop_after=1, end=SILENCE)]
    server.on(POLL, *faults, dialect.completed)
    began = time.monotonic()
    assert wait(path).kind == COMPLETED
    assert time.monotonic() - began >= 1.2


@pytest.mark.row("N4")
@path
def test_the_deadline_of_the_wait_cuts_a_poll_in_flight(path: str, server: FaultServer, connect: Connect) -> None:
    connect(server.url, timeout=3600)
    server.on(POLL, NoReply(SILENCE))
    outcome = wait(path, timeout=0.5)
    assert outcome.kind == TIMEOUT


@pytest.mark.row("N5")
@path
@pytest.mark.parametrize("status", [401, 403])
def test_a_token_refused_mid_wait_ends_it_naming_the_connection(
    path: str, server: FaultServer, dialect: Dialect, status: int
) -> None:
    server.on(POLL, dialect.running, Reply(status=status, body={"detail": "Invalid token"}))
    outcome = wait(path)
    assert outcome.kind == GAVE_UP
    assert str(status) in outcome.message
    assert "'crew_default'" in outcome.message
    assert len(server.requests) == 2
    assert TOKEN not in outcome.message


@pytest.mark.row("N5")
@path
def test_a_token_that_was_rotated_is_looked_up_and_used(
    path: str, server: FaultServer, connect: Connect, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Any) -> Any:
        if len(server.requests) == 2:
            connect(server.url, token="the-new-token")
        good = TOKEN if len(server.requests) < 2 else "the-new-token"
        if request.token != f"Bearer {good}":
            return Reply(status=401, body={"detail": "Invalid token"})
        return Reply(body=dialect.running if len(server.requests) < 4 else dialect.completed)

    monkeypatch.setattr(server, "_decide", answer)
    assert wait(path).kind == COMPLETED
    assert server.requests[-1].token == "Bearer the-new-token"


@pytest.mark.row("N6")
@path
def test_an_id_that_is_unknown_at_first_is_forgiven(path: str, server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, dialect.unknown, dialect.unknown, dialect.running, dialect.completed)
    assert wait(path).kind == COMPLETED


@pytest.mark.row("N6")
@path
def test_an_id_that_stays_unknown_is_given_up_and_named(
    path: str, server: FaultServer, dialect: Dialect, impatient: None
) -> None:
    server.on(POLL, dialect.unknown)
    outcome = wait(path)
    assert outcome.kind == GAVE_UP
    assert "The service does not know this id: k-1" in outcome.message


@pytest.mark.row("N6")
@path
def test_a_seen_id_is_waited_for_until_the_timeout(
    path: str, server: FaultServer, dialect: Dialect, impatient: None, log_text: Callable[[], str]
) -> None:
    server.on(POLL, dialect.running, dialect.unknown)
    outcome = wait(path, timeout=1.2)
    assert outcome.kind == TIMEOUT
    assert "may be waiting for a person" in log_text()


@pytest.mark.row("N6")
@path
def test_a_live_pause_without_task_id_ends_no_wait(path: str, server: FaultServer) -> None:
    server.on(POLL, {"state": "PAUSED", "status": None}, {"state": "PAUSED", "status": None}, LIVE.completed)
    assert wait(path).kind == COMPLETED


@path
def test_a_pending_execution_of_the_specification_ends_the_wait(path: str, server: FaultServer) -> None:
    server.on(POLL, SPEC.running, PENDING_SPEC)
    outcome = wait(path)
    assert (outcome.kind, outcome.crew_task_id) == (PENDING, "draft_task")


@pytest.mark.row("N7")
@path
def test_unreadable_answers_are_forgiven_and_never_a_success(path: str, server: FaultServer, dialect: Dialect) -> None:
    bodies = (b"{", b"[]", b"null", b"", b'{"status": "completed"}', b'{"state": "SUCCESS", "result": 5}')
    faults = [Reply(body=body) for body in bodies]
    server.on(POLL, *faults, Reply(status=204), {"status": "contemplating"}, dialect.completed)
    assert wait(path).kind == COMPLETED
    assert len(server.requests) >= 9


@pytest.mark.row("N7")
@path
def test_unreadable_answers_for_ever_end_the_wait(path: str, server: FaultServer, impatient: None) -> None:
    server.on(POLL, Reply(body=b"<html>completed</html>"))
    outcome = wait(path)
    assert outcome.kind == GAVE_UP
    assert "not JSON" in outcome.message


@pytest.mark.row("N7")
@pytest.mark.parametrize("path", [POKE, TRIGGERER])
def test_a_body_of_fifty_megabytes_does_not_end_the_wait(
    path: str, server: FaultServer, connect: Connect, dialect: Dialect
) -> None:
    connect(server.url, timeout=20)
    server.on(POLL, Reply(body=b" " * 50_000_000), dialect.completed)
    assert wait(path).kind == COMPLETED


@pytest.mark.row("N9")
@path
def test_a_foreign_redirect_ends_the_wait_without_sending_the_token(
    path: str, server: FaultServer, dialect: Dialect
) -> None:
    with FaultServer() as other:
        server.on(POLL, Reply(status=307, headers={"Location": f"{other.url}/status/k-1"}))
        assert wait(path).kind == GAVE_UP
        assert other.requests == []


@pytest.mark.row("N16")
@path
@pytest.mark.parametrize("base", ["/base", "/base/", "/base//"])
def test_a_base_url_with_a_path_and_slashes_is_kept(
    path: str, server: FaultServer, connect: Connect, dialect: Dialect, base: str
) -> None:
    connect(server.url + base)
    server.on("GET /base/status/k-1", dialect.completed)
    assert wait(path).kind == COMPLETED


def test_the_heartbeat_of_a_wait_stands_in_the_log_once(server: FaultServer, log_text: Callable[[], str]) -> None:
    server.on(POLL, SPEC.running, SPEC.running, SPEC.completed)
    wait(POKE)
    assert log_text().count("Execution k-1 is running: 1 of 2 tasks, now draft_task") == 1


def test_get_status_and_aget_status_agree(server: FaultServer, dialect: Dialect) -> None:
    import asyncio

    server.on(POLL, dialect.completed)
    assert asyncio.run(CrewHook().aget_status("k-1")) == CrewHook().get_status("k-1")


def test_a_wait_past_a_question_warns_that_nobody_is_asked(
    server: FaultServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"})
    server.on(POLL, SPEC.running, PENDING_SPEC, SPEC.completed)
    operator = CrewKickoffOperator(
        task_id="kickoff", inputs={}, wait_for_completion=True, deferrable=False, poll_interval=0.05
    )
    run(operator)
    printed = [line for line in capsys.readouterr().out.splitlines() if NOBODY_IS_ASKED in line]
    logged = [record for record in caplog.records if NOBODY_IS_ASKED in record.getMessage()]
    assert any("warning" in line for line in printed) or any(record.levelname == "WARNING" for record in logged)
