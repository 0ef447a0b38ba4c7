"""What travels over a real socket and what does not, blocking and awaiting alike."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from faults.certificates import self_signed
from faults.dialects import DIALECTS, LIVE, SPEC, Dialect
from faults.server import FaultServer
from faults.wire import CLOSE, RESET, SILENCE, NoReply, Reply

from airflow_crew_provider import api
from airflow_crew_provider.client import LARGEST_BODY, Client, Deployment
from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewBadRequest,
    CrewConnectionError,
    CrewError,
    CrewInvalidInput,
    CrewMissingInputs,
    CrewNotFound,
    CrewOutcomeUnknown,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
    CrewUnauthorized,
)
from airflow_crew_provider.models import ExecutionState, Kickoff, Resume

Ask = Callable[..., Any]
STATUS = api.status("k-1")
LOOK = "GET /status/k-1"
KICKOFF = api.kickoff(Kickoff(inputs={"topic": "AI"}))
RESUME = api.resume(Resume(execution_id="k-1", crew_task_id="t", human_feedback="Approved.", is_approve=True))
GATEWAY = "<html><head><style>p{}</style><title>502 Bad Gateway</title></head><body><h1>Sorry</h1></body></html>"


@pytest.fixture(params=DIALECTS, ids=str)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


def send(server: FaultServer, call: Any, **deployment: Any) -> Any:
    return Client(Deployment(**{"base_url": server.url, "token": "token", "timeout": 5.0, **deployment})).send(call)


# --- looks --------------------------------------------------------------------------------------------------


def test_a_look_reads_the_answer_of_either_dialect(ask: Ask, server: FaultServer, dialect: Dialect) -> None:
    server.on(LOOK, dialect.completed)
    assert ask(STATUS).output == "the output"
    assert server.requests[0].headers["authorization"].startswith("Bearer tok/")


@pytest.mark.row("N1")
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_n1_a_server_error_is_named_with_the_words_of_its_page(ask: Ask, server: FaultServer, status: int) -> None:
    server.on(LOOK, Reply(status=status, body=GATEWAY, headers={"Content-Type": "text/html"}))
    with pytest.raises(CrewServerError) as error:
        ask(STATUS)
    assert (error.value.status_code, error.value.detail) == (status, "502 Bad Gateway Sorry")


HTTP_DATE = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)


@pytest.mark.row("N2")
@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7),
        # Ids of their own: every process that runs the tests must collect the same ones.
        pytest.param(HTTP_DATE, 1800, 3600, id="a date to come"),
        pytest.param(format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True), 0, 0, id="a date gone by"),
        (str(365 * 86400), 365 * 86400, 365 * 86400),
        ("-5", None, None),
        ("soon", None, None),
        ("1.5e3", None, None),
        ("٣", None, None),
        ("", None, None),
    ],
)
def test_n2_a_retry_after_is_read_in_every_form(
    ask: Ask, server: FaultServer, header: str, least: float | None, most: float | None
) -> None:
    server.on(LOOK, Reply(status=429, body={"detail": "slow down"}, headers={"Retry-After": _latin(header)}))
    with pytest.raises(CrewRateLimited) as error:
        ask(STATUS)
    asked = error.value.retry_after
    assert (asked is None) if least is None or most is None else (asked is not None and least <= asked <= most)


def _latin(text: str) -> str:
    return text.encode().decode("latin-1")


@pytest.mark.row("N3")
def test_n3_a_refused_connection_is_an_error_that_may_heal(ask: Ask) -> None:
    with FaultServer(listening=False) as closed, pytest.raises(CrewConnectionError) as error:
        ask(STATUS, base_url=closed.url)
    assert not error.value.permanent
    assert "refused" in str(error.value).lower() or "connect call failed" in str(error.value).lower()


@pytest.mark.row("N3")
@pytest.mark.parametrize("fault", [NoReply(RESET), NoReply(CLOSE), Reply(body=b"0123", stop_after=2, end=RESET)])
def test_n3_a_reset_after_the_request_is_an_error_that_may_heal(ask: Ask, server: FaultServer, fault: Any) -> None:
    server.on(LOOK, fault)
    with pytest.raises(CrewConnectionError) as error:
        ask(STATUS)
    assert not error.value.permanent


@pytest.mark.row("N3")
def test_n3_a_reset_before_the_request_is_an_error_that_may_heal(ask: Ask, server: FaultServer) -> None:
    server.reset_at_connect = 100
    with pytest.raises(CrewConnectionError) as error:
        ask(STATUS)
    assert not error.value.permanent


@pytest.mark.row("N3")
def test_n3_a_name_that_does_not_resolve_is_an_error_that_may_heal(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_n3_a_certificate_that_is_not_trusted_is_permanent_and_says_why(ask: Ask, certificate: Path) -> None:
    with FaultServer(certificate=certificate) as server, pytest.raises(CrewConnectionError) as error:
        ask(STATUS, base_url=server.url)
    assert error.value.permanent
    assert "certificate" in str(error.value).lower()
    assert server.requests == []


@pytest.mark.row("N3")
@pytest.mark.parametrize("trusted", ["by a file", "by nobody who looks"])
def test_n3_a_certificate_is_taken_as_the_connection_says(ask: Ask, certificate: Path, trusted: str) -> None:
    with FaultServer(certificate=certificate) as server:
        server.on(LOOK, SPEC.completed)
        verify = str(certificate) if trusted == "by a file" else False
        assert ask(STATUS, base_url=server.url, verify=verify).state is ExecutionState.COMPLETED


@pytest.mark.row("N3")
def test_n3_a_file_of_certificates_that_cannot_be_read_is_a_named_error(ask: Ask, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    for verify in (str(broken), str(tmp_path / "missing.pem")):
        with pytest.raises(CrewConnectionError):
            ask(STATUS, base_url="https://127.0.0.1:9", verify=verify)


@pytest.mark.row("N4")
@pytest.mark.parametrize(
    "fault",
    [
        NoReply(SILENCE),
        Reply(body=SPEC.completed, drip=0.2),
        Reply(body=SPEC.completed, stop_after=20, end=SILENCE),
        Reply(body=SPEC.completed, delay=30),
    ],
    ids=["silence", "one byte now and then", "half, then silence", "late"],
)
def test_n4_the_total_time_of_a_look_ends_it(ask: Ask, server: FaultServer, fault: Any) -> None:
    server.on(LOOK, fault)
    began = time.monotonic()
    with pytest.raises(CrewConnectionError) as error:
        ask(STATUS, timeout=0.5)
    assert time.monotonic() - began < 3
    assert not error.value.permanent


@pytest.mark.row("N4")
def test_n4_what_is_left_of_the_wait_cuts_a_look_in_flight(ask: Ask, server: FaultServer) -> None:
    server.on(LOOK, NoReply(SILENCE))
    began = time.monotonic()
    with pytest.raises(CrewConnectionError):
        ask(STATUS, within=0.3, timeout=30)
    assert time.monotonic() - began < 3


@pytest.mark.row("N4")
def test_n4_a_look_that_was_given_up_leaves_no_thread_behind(server: FaultServer) -> None:
    server.on(LOOK, Reply(body=b"x" * 10_000, drip=0.05))
    with pytest.raises(CrewConnectionError):
        send(server, STATUS, timeout=0.3)
    until = time.monotonic() + 5
    while any(thread.name == "crew-request" for thread in threading.enumerate()):
        assert time.monotonic() < until, "the thread of the look still reads"
        time.sleep(0.02)


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
def test_n7_what_cannot_be_read_is_an_error_that_a_wait_forgives_for_a_while(
    ask: Ask, server: FaultServer, fault: Reply
) -> None:
    server.on(LOOK, fault)
    with pytest.raises((CrewProtocolError, CrewConnectionError)):
        ask(STATUS)


@pytest.mark.row("N7")
@pytest.mark.parametrize("packed", [False, True])
def test_n7_a_body_of_fifty_megabytes_is_not_taken(ask: Ask, server: FaultServer, packed: bool) -> None:
    body = b'{"status": "completed", "result": {"output": "' + b"x" * 50_000_000 + b'"}}'
    reply = Reply(body=gzip.compress(body, 1), headers={"Content-Encoding": "gzip"}) if packed else Reply(body=body)
    server.on(LOOK, reply)
    with pytest.raises((CrewProtocolError, CrewConnectionError)):
        ask(STATUS, timeout=20.0)


@pytest.mark.row("N7")
def test_n7_a_body_just_under_the_limit_is_taken(ask: Ask, server: FaultServer) -> None:
    text = "x" * (LARGEST_BODY - 1000)
    server.on(LOOK, {"status": "completed", "result": {"output": text}})
    assert ask(STATUS, timeout=20.0).output == text


def test_a_packed_answer_is_unpacked(ask: Ask, server: FaultServer) -> None:
    packed = gzip.compress(b'{"status": "running"}')
    server.on(LOOK, Reply(body=packed, headers={"Content-Encoding": "gzip"}))
    assert ask(STATUS).state is ExecutionState.RUNNING


@pytest.mark.row("N9")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_n9_a_redirect_to_the_same_host_is_followed_with_the_token(ask: Ask, server: FaultServer, status: int) -> None:
    server.on(LOOK, Reply(status=status, headers={"Location": "/v2/status/k-1"}))
    server.on("GET /v2/status/k-1", LIVE.running)
    assert ask(STATUS).state is ExecutionState.RUNNING
    assert server.requests[1].token == server.requests[0].token


@pytest.mark.row("N9")
@pytest.mark.parametrize(
    "location", ["{other}/status/k-1", "//{host}/status/k-1", "http://localhost:{port}/status/k-1"]
)
def test_n9_the_token_never_goes_to_another_origin(ask: Ask, server: FaultServer, location: str) -> None:
    with FaultServer() as other:
        target = location.format(other=other.url, host=other.url[7:], port=server.port)
        server.on(LOOK, Reply(status=307, headers={"Location": target}))
        other.on(LOOK, SPEC.completed)
        with pytest.raises(CrewApiError, match="not followed"):
            ask(STATUS)
        assert other.requests == []
    assert len(server.requests) == 1


@pytest.mark.row("N9")
def test_n9_redirects_that_lead_nowhere_end(ask: Ask, server: FaultServer) -> None:
    server.on(LOOK, Reply(status=302, headers={"Location": "/status/k-1"}))
    with pytest.raises(CrewApiError):
        ask(STATUS)
    assert len(server.requests) <= 10


@pytest.mark.row("N9")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("call", [KICKOFF, RESUME], ids=["kickoff", "resume"])
def test_n9_a_post_is_not_redirected_nor_turned_into_a_get(
    ask: Ask, server: FaultServer, status: int, call: Any
) -> None:
    server.on(f"POST {call.path}", Reply(status=status, headers={"Location": "/elsewhere"}))
    with pytest.raises(CrewApiError) as error:
        ask(call)
    assert error.value.status_code == status
    assert [request.method for request in server.requests] == ["POST"]


# --- posts --------------------------------------------------------------------------------------------------


def test_a_kickoff_sends_what_both_dialects_take(ask: Ask, server: FaultServer) -> None:
    server.on("POST /kickoff", {"kickoff_id": "k-1"})
    assert ask(KICKOFF) == "k-1"
    (request,) = server.requests
    assert request.json == {"inputs": {"topic": "AI"}}
    assert request.headers["content-type"] == "application/json"
    assert "idempotency-key" not in request.headers


@pytest.mark.row("N10")
def test_n10_a_refused_kickoff_is_sent_once_the_port_listens(server: FaultServer) -> None:
    with FaultServer(listening=False) as late:
        late.on("POST /kickoff", {"kickoff_id": "k-1"})
        asyncio.run(_listen_later(late, 0.2))
        assert len(late.sent("POST /kickoff")) == 1


async def _listen_later(late: FaultServer, seconds: float) -> None:
    sending = asyncio.create_task(asyncio.to_thread(send, late, KICKOFF))
    await asyncio.sleep(seconds)
    late.listen()
    assert await sending == "k-1"


@pytest.mark.row("N10")
def test_n10_a_kickoff_that_is_refused_for_good_was_not_sent_and_says_so(ask: Ask) -> None:
    with FaultServer(listening=False) as closed:
        began = time.monotonic()
        with pytest.raises(CrewConnectionError, match="nothing was started"):
            ask(KICKOFF, base_url=closed.url)
    assert time.monotonic() - began < 10


@pytest.mark.row("N10")
def test_n10_a_kickoff_that_was_given_up_before_it_was_sent_is_never_sent_later() -> None:
    with FaultServer(listening=False) as late:
        late.on("POST /kickoff", {"kickoff_id": "k-1"})
        with pytest.raises(CrewConnectionError, match="nothing was started"):
            send(late, KICKOFF, kickoff_timeout=0.3)
        late.listen()
        time.sleep(1.5)  # the client's own pauses between attempts to connect are shorter
        assert late.sent("POST /kickoff") == []


LOST = {
    "reset": NoReply(RESET),
    "closed": NoReply(CLOSE),
    "silence": NoReply(SILENCE),
    "502": Reply(status=502, body=GATEWAY),
    "503": Reply(status=503, body={"detail": "busy"}),
    "504": Reply(status=504),
    "half an answer": Reply(body={"kickoff_id": "k-1"}, stop_after=5, end=RESET),
    "half, then silence": Reply(body={"kickoff_id": "k-1"}, stop_after=5, end=SILENCE),
    "no body": Reply(status=204),
    "not JSON": Reply(body="<html>ok</html>"),
    "a list": Reply(body=[]),
    "null": Reply(body=b"null"),
    "too large": Reply(body=b"x" * 20_000_000),
    "broken gzip": Reply(body=b"x", headers={"Content-Encoding": "gzip"}),
}
WITHOUT_ID = {
    "no id": Reply(body={"status": "ok"}),
    "an empty id": Reply(body={"kickoff_id": ""}),
    "an id of dots": Reply(body={"kickoff_id": ".."}),
    "an id of a number": Reply(body={"kickoff_id": 5}),
    "an id of 10 kB": Reply(body={"kickoff_id": "x" * 10_000}),
}


@pytest.mark.row("N11")
@pytest.mark.parametrize("fault", [*LOST, *WITHOUT_ID])
def test_n11_a_kickoff_whose_answer_is_lost_is_unknown_and_sent_once(ask: Ask, server: FaultServer, fault: str) -> None:
    server.on("POST /kickoff", {**LOST, **WITHOUT_ID}[fault])
    with pytest.raises(CrewOutcomeUnknown, match=r"unknown|not known"):
        ask(KICKOFF, kickoff_timeout=1.0)
    assert len(server.sent("POST /kickoff")) == 1


@pytest.mark.row("N11")
def test_n11_a_500_is_a_server_error_and_sent_once(ask: Ask, server: FaultServer) -> None:
    server.on("POST /kickoff", Reply(status=500, body="Internal Server Error"))
    with pytest.raises(CrewServerError, match="Internal Server Error"):
        ask(KICKOFF)
    assert len(server.requests) == 1


RESUMED_NONSENSE = {
    "nothing said": Reply(body={}),
    "a null id": Reply(body={"kickoff_id": None}),
    "a status that is no text": Reply(body={"status": 5}),
    "an id of a number": Reply(body={"kickoff_id": 5}),
    "an id that cannot be polled": Reply(body={"kickoff_id": ".."}),
}


@pytest.mark.row("N13")
@pytest.mark.parametrize("fault", [*LOST, *RESUMED_NONSENSE])
def test_n13_a_resume_whose_answer_is_lost_is_unknown_and_sent_once(ask: Ask, server: FaultServer, fault: str) -> None:
    server.on("POST /resume", {**LOST, **RESUMED_NONSENSE}[fault])
    with pytest.raises(CrewOutcomeUnknown):
        ask(RESUME, kickoff_timeout=1.0)
    assert len(server.sent("POST /resume")) == 1


@pytest.mark.parametrize(("dialect_", "polled"), [(SPEC, "k-1"), (LIVE, "k-2")], ids=["spec", "live"])
def test_a_resume_tells_which_id_to_poll(ask: Ask, server: FaultServer, dialect_: Dialect, polled: str) -> None:
    server.on("POST /resume", dialect_.resumed)
    assert ask(RESUME).kickoff_id == polled
    body = server.requests[0].json
    assert (body["execution_id"], body["executionId"]) == ("k-1", "k-1")
    assert (body["task_id"], body["taskId"], body["is_approve"], body["isApprove"]) == ("t", "t", True, True)
    assert (body["human_feedback"], body["humanFeedback"]) == ("Approved.", "Approved.")


@pytest.mark.row("N12")
@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Reply(status=400, body={"error": "Bad", "message": "inputs must be an object"}), CrewBadRequest, "must be"),
        (Reply(status=401, body={"detail": "Invalid or missing authentication"}), CrewUnauthorized, "authentication"),
        (Reply(status=403, body={"detail": "not allowed"}), CrewUnauthorized, "not allowed"),
        (Reply(status=404, body="404 page not found"), CrewNotFound, "page not found"),
        (Reply(status=422, body={"detail": "Missing inputs: topic, tone"}), CrewMissingInputs, "topic, tone"),
        (Reply(status=429, body={"detail": "too many"}), CrewRateLimited, "too many"),
        (Reply(status=403, body={"detail": "Monthly execution limit reached"}), CrewRateLimited, "limit reached"),
        (Reply(status=200, body={"detail": "Monthly execution limit reached"}), CrewRateLimited, "limit reached"),
        (Reply(status=500, body="Internal Server Error"), CrewServerError, "Internal Server Error"),
    ],
)
def test_n12_a_refusal_is_one_clear_error(
    ask: Ask, server: FaultServer, fault: Reply, kind: type[CrewError], said: str
) -> None:
    server.on("POST /kickoff", fault)
    with pytest.raises(kind, match=said) as error:
        ask(KICKOFF)
    assert type(error.value) is kind


@pytest.mark.row("N12")
@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"detail": "Missing inputs: audience, topic"}, ["audience", "topic"]),
        ({"detail": "Missing required inputs: ['audience', 'topic']"}, ["audience", "topic"]),
        ({"error": "x", "message": "y", "details": {"missing_inputs": ["audience", "topic"]}}, ["audience", "topic"]),
        (
            {"detail": [{"loc": ["body", "inputs"], "msg": "Field required", "type": "missing"}]},
            ["inputs"],
        ),
        ({"detail": [{"loc": []}, {"loc": None}, {"loc": 5}, "x", 5]}, []),
        ({"detail": "something else"}, []),
        ([], []),
    ],
)
def test_n12_a_422_names_the_inputs_that_are_missing(
    ask: Ask, server: FaultServer, body: Any, names: list[str]
) -> None:
    server.on("POST /kickoff", Reply(status=422, body=body))
    with pytest.raises(CrewMissingInputs) as error:
        ask(KICKOFF)
    assert error.value.names == names


# --- ids ----------------------------------------------------------------------------------------------------

IDS = {
    "a/b": "a%2Fb",
    "a/../b": "a%2F..%2Fb",
    "../inputs": "..%2Finputs",
    "a?b=c#d": "a%3Fb%3Dc%23d",
    "a b": "a%20b",
    "ü\u4e2d": "%C3%BC%E4%B8%AD",
    "100%": "100%25",
    "%2F": "%252F",
    "a;b:c@d": "a%3Bb%3Ac%40d",
    "...": "...",
    "a\r\nX: y": "a%0D%0AX%3A%20y",
    "x" * 2048: "x" * 2048,
}


@pytest.mark.row("N15")
@pytest.mark.parametrize("identifier", IDS, ids=lambda text: ascii(text)[:20])
def test_n15_an_id_reaches_the_service_as_one_segment(ask: Ask, server: FaultServer, identifier: str) -> None:
    server.on("GET *", SPEC.running).on("POST *", {"status": "stopped"})
    ask(api.status(identifier))
    ask(api.stop(identifier))
    assert [each.target for each in server.requests] == [f"/status/{IDS[identifier]}", f"/stop/{IDS[identifier]}"]


@pytest.mark.row("N15")
@pytest.mark.parametrize("identifier", ["", ".", "..", "x" * 2049, "ü" * 1025, "x" * 10_000, None, 5, b"k", "\ud800"])
def test_n15_what_cannot_be_an_id_is_refused_before_anything_is_sent(identifier: Any) -> None:
    for call in (api.status, api.stop):
        with pytest.raises(CrewInvalidInput, match="nothing was sent"):
            call(identifier)
    for execution_id, crew_task_id in ((identifier, "t"), ("k-1", identifier)):
        with pytest.raises(CrewInvalidInput):
            api.resume(
                Resume(execution_id=execution_id, crew_task_id=crew_task_id, human_feedback="x", is_approve=True)
            )


# --- addresses, netrc, proxies ------------------------------------------------------------------------------


@pytest.mark.row("N16")
@pytest.mark.parametrize("path", ["/base", "/base/of/it", "/with%20space", "/a%2Fb"])
def test_n16_the_path_of_the_base_url_is_kept(ask: Ask, server: FaultServer, path: str) -> None:
    server.on(f"GET {path}/status/k-1", SPEC.running)
    assert ask(STATUS, base_url=server.url + path).state is ExecutionState.RUNNING


@pytest.mark.row("N16")
def test_n16_an_ipv6_address_is_reached(ask: Ask) -> None:
    try:
        server = FaultServer(family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        server.on(LOOK, SPEC.running)
        assert ask(STATUS, base_url=server.url).state is ExecutionState.RUNNING


@pytest.mark.row("N16")
def test_n16_the_token_of_the_connection_wins_over_netrc(
    ask: Ask, server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text(netrc.read_text())
    server.on(LOOK, SPEC.running)
    ask(STATUS)
    ask(STATUS, token="", headers=(("Authorization", "Key own"),))
    assert [each.token for each in server.requests] == ["Bearer tok/en+with=specials~0123456789", "Key own"]


@pytest.fixture
def no_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


@pytest.mark.row("N16")
@pytest.mark.parametrize("said_by", ["the connection", "the environment"])
def test_n16_the_proxy_is_used_when_the_connection_or_the_environment_says_so(
    ask: Ask, server: FaultServer, no_proxy_variables: pytest.MonkeyPatch, said_by: str
) -> None:
    with FaultServer() as proxy:
        proxy.on("GET http://crew.example/status/k-1", SPEC.running)
        address = proxy.url.replace("//", "//user:pa55word@")
        if said_by == "the environment":
            no_proxy_variables.setenv("http_proxy", address)
        own = address if said_by == "the connection" else None
        assert ask(STATUS, base_url="http://crew.example", proxy=own).state is ExecutionState.RUNNING
        assert proxy.requests[0].headers["proxy-authorization"] == "Basic dXNlcjpwYTU1d29yZA=="
        assert proxy.requests[0].headers["authorization"].startswith("Bearer ")


@pytest.mark.row("N16")
def test_n16_no_proxy_is_used_for_a_host_that_the_environment_excepts(
    ask: Ask, server: FaultServer, no_proxy_variables: pytest.MonkeyPatch
) -> None:
    server.on(LOOK, SPEC.running)
    with FaultServer() as proxy:
        no_proxy_variables.setenv("http_proxy", proxy.url)
        no_proxy_variables.setenv("no_proxy", "127.0.0.1")
        ask(STATUS)
        assert proxy.requests == []


@pytest.mark.row("N16")
def test_n16_a_post_through_a_proxy_that_refuses_was_not_sent(ask: Ask, no_proxy_variables: pytest.MonkeyPatch) -> None:
    with FaultServer() as proxy:
        proxy.on("CONNECT *", Reply(status=407, body="who are you"))
        with pytest.raises(CrewConnectionError):
            ask(KICKOFF, base_url="https://crew.example", proxy=proxy.url, kickoff_timeout=3.0)


def test_extra_headers_are_sent_and_never_replace_the_token(ask: Ask, server: FaultServer) -> None:
    server.on(LOOK, SPEC.running)
    ask(STATUS, headers=(("X-Tenant", "a"), ("authorization", "Bearer other")))
    (request,) = server.requests
    assert request.headers["x-tenant"] == "a"
    assert request.token == "Bearer tok/en+with=specials~0123456789"


def test_cookies_of_the_service_are_not_kept(ask: Ask, server: FaultServer) -> None:
    server.on(LOOK, Reply(body=SPEC.running, headers={"Set-Cookie": "session=1"}))
    ask(STATUS)
    ask(STATUS)
    assert all("cookie" not in request.headers for request in server.requests)


def test_nothing_is_logged_of_a_request(ask: Ask, server: FaultServer, caplog: pytest.LogCaptureFixture) -> None:
    server.on(LOOK, SPEC.running)
    with caplog.at_level(logging.INFO):
        ask(STATUS)
    assert caplog.records == []
