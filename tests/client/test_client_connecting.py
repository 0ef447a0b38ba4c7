"""Connections that fail: what may heal, what is permanent, and that nothing was sent."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from client_calls import KICKOFF, POLL, STATUS, Ask, send
from faults.certificates import self_signed
from faults.dialects import SPEC
from faults.server import FaultServer
from faults.wire import CLOSE, RESET, NoReply, Reply

from airflow_crew_provider.client.blocking import CONNECT_PAUSES
from airflow_crew_provider.exceptions import CrewConnectionError
from airflow_crew_provider.models import ExecutionState

pytestmark = pytest.mark.waits


@pytest.mark.row("N3")
def test_a_refused_connection_is_a_transient_error(ask: Ask) -> None:
    with FaultServer(listening=False) as closed, pytest.raises(CrewConnectionError) as error:
        ask(STATUS, base_url=closed.url)
    assert not error.value.permanent
    assert "refused" in str(error.value).lower() or "connect call failed" in str(error.value).lower()


@pytest.mark.row("N3")
@pytest.mark.parametrize("fault", [NoReply(RESET), NoReply(CLOSE), Reply(body=b"0123", stop_after=2, end=RESET)])
def test_a_reset_after_the_request_is_a_transient_error(ask: Ask, server: FaultServer, fault: Any) -> None:
    server.on(POLL, fault)
    with pytest.raises(CrewConnectionError) as error:
        ask(STATUS)
    assert not error.value.permanent


@pytest.mark.row("N3")
def test_a_reset_before_the_request_is_a_transient_error(ask: Ask, server: FaultServer) -> None:
    server.reset_at_connect = 100
    with pytest.raises(CrewConnectionError) as error:
        ask(STATUS)
    assert not error.value.permanent


@pytest.mark.row("N3")
def test_a_name_that_does_not_resolve_is_a_transient_error(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **more: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(CrewConnectionError) as error:
        ask(STATUS, base_url="http://crew.invalid")
    assert not error.value.permanent


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return self_signed(tmp_path)


@pytest.mark.row("N3")
def test_an_untrusted_certificate_is_a_permanent_error_naming_its_reason(ask: Ask, certificate: Path) -> None:
    with FaultServer(certificate=certificate) as server, pytest.raises(CrewConnectionError) as error:
        ask(STATUS, base_url=server.url)
    assert error.value.permanent
    assert "certificate" in str(error.value).lower()
    assert server.requests == []


@pytest.mark.row("N3")
@pytest.mark.parametrize("trusted", ["by a file", "by nobody who looks"])
def test_a_certificate_is_taken_as_the_connection_says(ask: Ask, certificate: Path, trusted: str) -> None:
    with FaultServer(certificate=certificate) as server:
        server.on(POLL, SPEC.completed)
        verify = str(certificate) if trusted == "by a file" else False
        assert ask(STATUS, base_url=server.url, verify=verify).state is ExecutionState.COMPLETED


@pytest.mark.row("N3")
def test_an_unreadable_certificate_file_is_a_named_error(ask: Ask, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    for verify in (str(broken), str(tmp_path / "missing.pem")):
        with pytest.raises(CrewConnectionError):
            ask(STATUS, base_url="https://127.0.0.1:9", verify=verify)


@pytest.mark.row("N3")
def test_attempts_to_connect_are_bounded_and_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    began = time.monotonic()
    with FaultServer(listening=False) as closed, pytest.raises(CrewConnectionError) as error:
        send(closed, STATUS)
    assert error.value.unreachable
    assert sum(CONNECT_PAUSES) <= time.monotonic() - began < 5
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.row("N3")
def test_a_proxy_that_refuses_connections_is_asked_again_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with FaultServer(listening=False) as closed, pytest.raises(CrewConnectionError) as error:
        send(closed, STATUS, base_url="http://crew.invalid", proxy=closed.url)
    assert error.value.unreachable
    assert caplog.records == []


@pytest.mark.row("N3")
def test_a_peer_that_answers_nothing_is_not_unreachable(server: FaultServer) -> None:
    server.on(POLL, NoReply(RESET))
    with pytest.raises(CrewConnectionError) as error:
        send(server, STATUS)
    assert not error.value.unreachable
    assert server.connections == 1


@pytest.mark.row("N3")
def test_a_peer_that_does_not_speak_tls_is_unreachable(ask: Ask) -> None:
    """So that a crew is not started although its inputs could not be checked: no kickoff would arrive either."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as plain:
        threading.Thread(target=plain.serve_forever).start()
        try:
            with pytest.raises(CrewConnectionError, match="does not speak TLS") as error:
                ask(STATUS, base_url=f"https://127.0.0.1:{plain.server_port}")
        finally:
            plain.shutdown()
    assert error.value.unreachable


@pytest.mark.row("N10")
def test_a_refused_kickoff_is_sent_once_the_port_listens(server: FaultServer) -> None:
    with FaultServer(listening=False) as late:
        late.on("POST /kickoff", {"kickoff_id": "k-1"})
        asyncio.run(_listen_later(late, 0.2))
        assert len(late.sent("POST /kickoff")) == 1


async def _listen_later(late: FaultServer, seconds: float) -> None:
    sending = asyncio.create_task(asyncio.to_thread(send, late, KICKOFF))
    await asyncio.sleep(seconds)
    late.listen()
    assert (await sending).kickoff_id == "k-1"


@pytest.mark.row("N10")
def test_a_kickoff_with_its_connection_refused_says_nothing_was_started(ask: Ask) -> None:
    with FaultServer(listening=False) as closed, pytest.raises(CrewConnectionError, match="nothing was started"):
        ask(KICKOFF, base_url=closed.url)


@pytest.mark.row("N10")
def test_a_kickoff_given_up_before_sending_is_never_sent_later() -> None:
    with FaultServer(listening=False) as late:
        late.on("POST /kickoff", {"kickoff_id": "k-1"})
        with pytest.raises(CrewConnectionError, match="nothing was started"):
            send(late, KICKOFF, kickoff_timeout=0.3)
        late.listen()
        time.sleep(1.5)  # the client's own pauses between attempts to connect are shorter
        assert late.sent("POST /kickoff") == []


@pytest.mark.row("N3")
def test_a_peer_without_tls_is_named_with_what_to_do(ask: Ask) -> None:
    plain = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    try:
        with pytest.raises(
            CrewConnectionError, match=r"Host without a scheme means https; if you mean http, write http://"
        ):
            ask(STATUS, base_url=f"https://127.0.0.1:{plain.server_port}")
    finally:
        plain.shutdown()
        plain.server_close()
