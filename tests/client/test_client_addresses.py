"""Where a request goes and with which headers: paths, IPv6, proxies, netrc, cookies."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from client_calls import KICKOFF, POLL, STATUS, Ask
from faults.dialects import SPEC
from faults.server import FaultServer
from faults.wire import Reply

from airflow_crew_provider.exceptions import CrewConnectionError
from airflow_crew_provider.models import ExecutionState


@pytest.mark.row("N16")
@pytest.mark.parametrize("path", ["/base", "/base/of/it", "/with%20space", "/a%2Fb"])
def test_the_path_of_the_base_url_is_kept(ask: Ask, server: FaultServer, path: str) -> None:
    server.on(f"GET {path}/status/k-1", SPEC.running)
    assert ask(STATUS, base_url=server.url + path).state is ExecutionState.RUNNING


@pytest.mark.row("N16")
def test_an_ipv6_address_is_reached(ask: Ask) -> None:
    try:
        server = FaultServer(family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        server.on(POLL, SPEC.running)
        assert ask(STATUS, base_url=server.url).state is ExecutionState.RUNNING


@pytest.mark.row("N16")
def test_the_token_of_the_connection_wins_over_netrc(
    ask: Ask, server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text(netrc.read_text())
    server.on(POLL, SPEC.running)
    ask(STATUS)
    ask(STATUS, token="", headers=(("Authorization", "Key own"),))
    assert [each.token for each in server.requests] == ["Bearer tok/en+with=specials~0123456789", "Key own"]


@pytest.mark.row("N16")
@pytest.mark.parametrize("said_by", ["the connection", "the environment"])
def test_a_proxy_of_the_connection_or_the_environment_is_used(
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
@pytest.mark.parametrize("address", ["127.0.0.1:{}", "localhost:{}", "user:pa55word@localhost:{}"])
def test_a_proxy_without_a_scheme_is_used_as_well(
    ask: Ask, no_proxy_variables: pytest.MonkeyPatch, address: str
) -> None:
    with FaultServer() as proxy:
        proxy.on("GET http://crew.example/status/k-1", SPEC.running)
        no_proxy_variables.setenv("http_proxy", address.format(proxy.port))
        assert ask(STATUS, base_url="http://crew.example").state is ExecutionState.RUNNING


@pytest.mark.row("N16")
@pytest.mark.parametrize("call", [STATUS, KICKOFF], ids=["status", "kickoff"])
@pytest.mark.parametrize(
    "address", ["socks5://user:12pa55@127.0.0.1:9", "http://user:12pa/55word@127.0.0.1:9", "http://127.0.0.1:99999"]
)
def test_a_proxy_that_only_one_side_could_use_is_refused(
    ask: Ask, no_proxy_variables: pytest.MonkeyPatch, address: str, call: Any
) -> None:
    no_proxy_variables.setenv("all_proxy", address)
    with pytest.raises(CrewConnectionError, match="the environment's proxy is not an http or https") as error:
        ask(call, base_url="http://crew.example")
    assert error.value.permanent
    assert "12pa" not in str(error.value)


@pytest.mark.row("N16")
def test_no_proxy_is_used_for_a_host_the_environment_excepts(
    ask: Ask, server: FaultServer, no_proxy_variables: pytest.MonkeyPatch
) -> None:
    server.on(POLL, SPEC.running)
    with FaultServer() as proxy:
        no_proxy_variables.setenv("http_proxy", proxy.url)
        no_proxy_variables.setenv("no_proxy", "127.0.0.1")
        ask(STATUS)
        assert proxy.requests == []


@pytest.mark.row("N16")
def test_a_post_through_a_proxy_that_refuses_was_not_sent(ask: Ask, no_proxy_variables: pytest.MonkeyPatch) -> None:
    with FaultServer() as proxy:
        proxy.on("CONNECT *", Reply(status=407, body="who are you"))
        with pytest.raises(CrewConnectionError):
            ask(KICKOFF, base_url="https://crew.example", proxy=proxy.url, kickoff_timeout=3.0)


def test_extra_headers_are_sent_and_never_replace_the_token(ask: Ask, server: FaultServer) -> None:
    server.on(POLL, SPEC.running)
    ask(STATUS, headers=(("X-Tenant", "a"), ("authorization", "Bearer other")))
    (request,) = server.requests
    assert request.headers["x-tenant"] == "a"
    assert request.token == "Bearer tok/en+with=specials~0123456789"


def test_cookies_of_the_service_are_not_kept(ask: Ask, server: FaultServer) -> None:
    server.on(POLL, Reply(body=SPEC.running, headers={"Set-Cookie": "session=1"}))
    ask(STATUS)
    ask(STATUS)
    assert all("cookie" not in request.headers for request in server.requests)


def test_nothing_is_logged_of_a_request(ask: Ask, server: FaultServer, caplog: pytest.LogCaptureFixture) -> None:
    server.on(POLL, SPEC.running)
    with caplog.at_level(logging.INFO):
        ask(STATUS)
    assert caplog.records == []
