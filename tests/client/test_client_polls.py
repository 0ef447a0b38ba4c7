"""What a poll brings back, and when it is given up."""

from __future__ import annotations

import gzip
import json
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from client_calls import GATEWAY, KICKOFF, POLL, RESUME, STATUS, Ask, send
from faults.dialects import SPEC, Dialect
from faults.endless import EndlessServer
from faults.server import FaultServer
from faults.wire import SILENCE, NoReply, Reply

from airflow_crew_provider.client.deployment import LARGEST_BODY
from airflow_crew_provider.exceptions import CrewConnectionError, CrewProtocolError, CrewRateLimited, CrewServerError
from airflow_crew_provider.models import ExecutionState
from scripts.stack.waiting import wait_until

pytestmark = pytest.mark.waits


def test_a_poll_reads_the_answer_of_either_dialect(ask: Ask, server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, dialect.completed)
    assert ask(STATUS).output == "the output"
    assert server.requests[0].headers["authorization"].startswith("Bearer tok/")


@pytest.mark.row("N1")
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_error_carries_the_words_of_its_page(ask: Ask, server: FaultServer, status: int) -> None:
    server.on(POLL, Reply(status=status, body=GATEWAY, headers={"Content-Type": "text/html"}))
    with pytest.raises(CrewServerError) as error:
        ask(STATUS)
    assert (error.value.status_code, error.value.detail) == (status, "502 Bad Gateway Sorry")


@pytest.mark.row("N38")
@pytest.mark.parametrize("interim", [(102,), (103,), (100, 103, 102, 100)], ids=str)
@pytest.mark.parametrize("call", [STATUS, KICKOFF, RESUME], ids=["status", "kickoff", "resume"])
def test_the_final_response_counts(ask: Ask, server: FaultServer, interim: tuple[int, ...], call: Any) -> None:
    gzipped = {"Content-Encoding": "gzip"}
    body = {"status": "running", "kickoff_id": "k-1"}
    server.on(POLL, Reply(body=gzip.compress(json.dumps(body).encode()), headers=gzipped, interim=interim))
    server.on("POST *", Reply(status=202, body=body, interim=interim))
    assert ask(call).kickoff_id == "k-1"
    assert len(server.requests) == 1


@pytest.mark.row("N38")
def test_a_refusal_after_an_interim_response_is_one(ask: Ask, server: FaultServer) -> None:
    server.on("POST *", Reply(status=429, body={"detail": "slow down"}, interim=(102,)))
    with pytest.raises(CrewRateLimited, match="slow down"):
        ask(KICKOFF)


@pytest.mark.row("N38")
def test_interim_responses_without_end_time_out(ask: Ask) -> None:
    with EndlessServer(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n") as server, pytest.raises(CrewConnectionError):
        ask(STATUS, base_url=f"http://{server.address}", timeout=0.5)


HOUR = timedelta(hours=1)


@pytest.mark.row("N2")
@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7),
        pytest.param(HOUR, 1800, 3600, id="a date to come"),
        pytest.param(-HOUR, 0, 0, id="a date gone by"),
        (str(365 * 86400), 365 * 86400, 365 * 86400),
        ("-5", None, None),
        ("soon", None, None),
        ("1.5e3", None, None),
        ("٣", None, None),
        ("", None, None),
    ],
)
def test_a_retry_after_is_read_in_every_form(
    ask: Ask, server: FaultServer, header: str | timedelta, least: float | None, most: float | None
) -> None:
    if isinstance(header, timedelta):
        header = format_datetime(datetime.now(UTC) + header, usegmt=True)
    server.on(POLL, Reply(status=429, body={"detail": "slow down"}, headers={"Retry-After": _latin(header)}))
    with pytest.raises(CrewRateLimited) as error:
        ask(STATUS)
    asked = error.value.retry_after
    assert (asked is None) if least is None or most is None else (asked is not None and least <= asked <= most)


def _latin(text: str) -> str:
    return text.encode().decode("latin-1")


@pytest.mark.row("N4")
@pytest.mark.parametrize(
    "fault",
    [
        NoReply(SILENCE),
        Reply(body=SPEC.completed, drip=0.2),
        Reply(body=SPEC.completed, stop_after=20, end=SILENCE),
        Reply(body=SPEC.completed, delay=3600),
    ],
    ids=["silence", "one byte now and then", "half, then silence", "late"],
)
def test_the_total_timeout_of_a_poll_ends_it(ask: Ask, server: FaultServer, fault: Any) -> None:
    server.on(POLL, fault)
    with pytest.raises(CrewConnectionError) as error:
        ask(STATUS, timeout=0.5)
    assert not error.value.permanent


@pytest.mark.row("N4")
def test_the_rest_of_the_wait_limits_a_poll_in_flight(ask: Ask, server: FaultServer) -> None:
    server.on(POLL, NoReply(SILENCE))
    with pytest.raises(CrewConnectionError):
        ask(STATUS, within=0.3, timeout=3600)


@pytest.mark.row("N4")
def test_an_abandoned_poll_leaves_no_thread_behind(server: FaultServer) -> None:
    server.on(POLL, Reply(body=b"x" * 10_000, drip=0.05))
    with pytest.raises(CrewConnectionError):
        send(server, STATUS, timeout=0.3)
    wait_until(
        lambda: all(thread.name != "crew-request" for thread in threading.enumerate()),
        "the end of the thread that reads",
        pause=0.02,
    )


OK = b"HTTP/1.1 200 OK\r\n"
BEGINNINGS = {
    "the status line": (b"HTTP/1.1 200 ", b"O"),
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers": (OK, b"X-More: 1\r\n"),
    "a body until the end": (OK + b"\r\n", b"x"),
    "a body after a redirect": (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n\r\n", b"x"),
    "a TLS handshake": (b"\x16\x03\x03\x40\x00", b"x"),
    "the response of a proxy": (OK, b"X-More: 1\r\n"),
}


@pytest.mark.row("N4")
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_an_abandoned_poll_ends_its_connection_wherever_the_response_stops(ask: Ask, beginning: str) -> None:
    head, piece = BEGINNINGS[beginning]
    with EndlessServer(head, piece, pause=0.05) as server:
        base_url = f"{'https' if 'TLS' in beginning else 'http'}://{server.address}"
        through = {"base_url": "https://crew.example", "proxy": base_url} if "proxy" in beginning else {}
        with pytest.raises(CrewConnectionError):
            ask(STATUS, **{"base_url": base_url, "timeout": 0.4, **through})
        wait_until(lambda: server.gone == server.connections > 0, "the end of the connection", pause=0.02)
        wait_until(
            lambda: all(thread.name != "crew-request" for thread in threading.enumerate()),
            "the end of the thread that reads",
            pause=0.02,
        )


@pytest.mark.row("N7")
@pytest.mark.parametrize(
    "fault",
    [
        Reply(body=b""),
        Reply(status=204),
        Reply(body=b"{"),
        Reply(body=b"null"),
        Reply(body=[]),
        Reply(body="<html>completed</html>"),
        Reply(body=b"not gzip", headers={"Content-Encoding": "gzip"}),
    ],
)
def test_an_unreadable_status_is_an_error_a_wait_can_forgive(ask: Ask, server: FaultServer, fault: Reply) -> None:
    server.on(POLL, fault)
    with pytest.raises((CrewProtocolError, CrewConnectionError)):
        ask(STATUS)


@pytest.mark.row("N7")
@pytest.mark.parametrize("packed", [False, True])
def test_a_body_of_fifty_megabytes_is_not_taken(ask: Ask, server: FaultServer, packed: bool) -> None:
    body = b'{"status": "completed", "result": {"output": "' + b"x" * 50_000_000 + b'"}}'
    reply = Reply(body=gzip.compress(body, 1), headers={"Content-Encoding": "gzip"}) if packed else Reply(body=body)
    server.on(POLL, reply)
    with pytest.raises((CrewProtocolError, CrewConnectionError)):
        ask(STATUS, timeout=20.0)


@pytest.mark.row("N7")
def test_a_body_just_under_the_limit_is_taken(ask: Ask, server: FaultServer) -> None:
    text = "x" * (LARGEST_BODY - 1000)
    server.on(POLL, {"status": "completed", "result": {"output": text}})
    assert ask(STATUS, timeout=20.0).output == text


def test_a_packed_answer_is_unpacked(ask: Ask, server: FaultServer) -> None:
    packed = gzip.compress(b'{"status": "running"}')
    server.on(POLL, Reply(body=packed, headers={"Content-Encoding": "gzip"}))
    assert ask(STATUS).state is ExecutionState.RUNNING
