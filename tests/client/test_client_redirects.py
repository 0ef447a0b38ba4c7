"""A redirect is followed at the same origin only, and never by a POST."""

from __future__ import annotations

from typing import Any

import pytest
from client_calls import KICKOFF, POLL, RESUME, STATUS, Ask
from faults.dialects import LIVE, SPEC
from faults.endless import EndlessServer
from faults.server import FaultServer
from faults.wire import Reply

from airflow_crew_provider.client.deployment import LARGEST_BODY
from airflow_crew_provider.exceptions import CrewApiError, CrewProtocolError
from airflow_crew_provider.models import ExecutionState


@pytest.mark.row("N9")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_same_host_redirect_is_followed_with_the_token(ask: Ask, server: FaultServer, status: int) -> None:
    server.on(POLL, Reply(status=status, headers={"Location": "/v2/status/k-1"}))
    server.on("GET /v2/status/k-1", LIVE.running)
    assert ask(STATUS).state is ExecutionState.RUNNING
    assert server.requests[1].token == server.requests[0].token


@pytest.mark.row("N9")
@pytest.mark.parametrize(
    "location", ["{other}/status/k-1", "//{host}/status/k-1", "http://localhost:{port}/status/k-1"]
)
def test_the_token_never_goes_to_another_origin(ask: Ask, server: FaultServer, location: str) -> None:
    with FaultServer() as other:
        target = location.format(other=other.url, host=other.url[7:], port=server.port)
        server.on(POLL, Reply(status=307, headers={"Location": target}))
        other.on(POLL, SPEC.completed)
        with pytest.raises(CrewApiError, match="not followed"):
            ask(STATUS)
        assert other.requests == []
    assert len(server.requests) == 1


@pytest.mark.row("N37")
@pytest.mark.parametrize(
    "location",
    [
        "http://localhost:{port}\\@{own}/status/k-1",
        "http://localhost:{port}\\.{own}/status/k-1",
        "http://{own}@localhost:{port}/status/k-1",
        "http://localhost:{port}/@{own}/../status/k-1",
        "//localhost:{port}\\@{own}/status/k-1",
    ],
)
def test_an_address_that_parsers_read_differently_gets_no_token(ask: Ask, server: FaultServer, location: str) -> None:
    with FaultServer() as other:
        target = location.format(port=other.port, own=server.url[7:])
        server.on(POLL, Reply(status=307, headers={"Location": target}))
        other.on("GET *", SPEC.completed)
        with pytest.raises(CrewApiError, match="not followed"):
            ask(STATUS)
        assert other.connections == 0
    assert len(server.requests) == 1


@pytest.mark.row("N37")
def test_what_follows_a_redirects_host_stays_at_the_own_origin(ask: Ask, server: FaultServer) -> None:
    with FaultServer() as other:
        for path in (f"//localhost:{other.port}/b", f"/@localhost:{other.port}/b", f"/b?@localhost:{other.port}/"):
            server.on(POLL, Reply(status=307, headers={"Location": f"http://{server.url[7:]}{path}#@localhost"}))
            server.on("GET *", LIVE.running)  # the oldest requests sends `//` as `/`
            assert ask(STATUS).state is ExecutionState.RUNNING
        assert other.connections == 0


@pytest.mark.row("N9")
def test_redirects_that_lead_nowhere_end(ask: Ask, server: FaultServer) -> None:
    server.on(POLL, Reply(status=302, headers={"Location": "/status/k-1"}))
    with pytest.raises(CrewApiError):
        ask(STATUS)
    assert len(server.requests) <= 10


@pytest.mark.row("N9")
def test_a_redirect_body_is_read_up_to_the_usual_limit(ask: Ask) -> None:
    head = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n\r\n"
    with EndlessServer(head, bytes(65536)) as server:
        with pytest.raises(CrewProtocolError, match="more than 16 MiB"):
            ask(STATUS, base_url=f"http://{server.address}")
        assert server.sent < 2 * LARGEST_BODY


@pytest.mark.row("N9")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("call", [KICKOFF, RESUME], ids=["kickoff", "resume"])
def test_a_post_is_not_redirected_nor_turned_into_a_get(ask: Ask, server: FaultServer, status: int, call: Any) -> None:
    server.on(f"POST {call.path}", Reply(status=status, headers={"Location": "/elsewhere"}))
    with pytest.raises(CrewApiError) as error:
        ask(call)
    assert error.value.status_code == status
    assert [request.method for request in server.requests] == ["POST"]
