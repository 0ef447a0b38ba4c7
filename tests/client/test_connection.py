"""The connection: what its fields mean, and that what cannot be meant is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Connection
from client_calls import KICKOFF, Ask
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import TOKEN, Connect, TaskRun, run

from airflow_crew_provider.api.addresses import base_url
from airflow_crew_provider.client.deployment import CrewConnection, read_connection
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")


def connection(**more: Any) -> CrewConnection:
    fields = {"conn_id": "crew_x", "conn_type": "crew", "host": "https://crew.example", "password": TOKEN, **more}
    if isinstance(fields.get("extra"), dict):
        fields["extra"] = json.dumps(fields["extra"])
    return read_connection(Connection(**fields))


@pytest.mark.row("N16")
@pytest.mark.parametrize(
    ("host", "port", "schema", "url"),
    [
        ("https://crew.example/base", None, None, "https://crew.example/base"),
        ("https://crew.example/base///", None, None, "https://crew.example/base"),
        ("crew.example", None, None, "https://crew.example"),
        ("crew.example", 8080, "http", "http://crew.example:8080"),
        ("crew.example:9/base", 8080, "http", "http://crew.example:9/base"),
        ("HTTPS://crew.example", None, "http", "https://crew.example"),
        (" https://crew.example ", None, None, "https://crew.example"),
        ("::1", 8080, "http", "http://[::1]:8080"),
        ("[::1]", 8080, "http", "http://[::1]:8080"),
        ("http://[::1]:9", 8080, None, "http://[::1]:9"),
        ("https://crew.example/with space/ü", None, None, "https://crew.example/with%20space/%C3%BC"),
        ("https://crew.example/a%2Fb", None, None, "https://crew.example/a%2Fb"),
    ],
)
def test_the_base_url_is_read_as_it_is_meant(host: str, port: int | None, schema: str | None, url: str) -> None:
    assert base_url(host, port, schema) == url


@pytest.mark.parametrize(
    "host",
    [
        *(
            None,
            "",
            "  ",
            "ftp://crew.example",
            "https://",
            "https://[::1",
            "https://x:99999",
            "https://x?a",
            "https://x#f",
        ),
        *("https://u:se-cret@x", "https://u:se-cret/x@y"),
    ],
)
def test_an_invalid_base_url_is_refused_and_not_shown(host: str | None) -> None:
    with pytest.raises(CrewInvalidInput, match="crew_x") as error:
        connection(host=host)
    assert "se-cret" not in str(error.value)


HEADERS = "Extra 'headers'"


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"timeout": "soon"}, "'timeout'"),
        ({"timeout": 0}, "'timeout'"),
        ({"timeout": True}, "'timeout'"),
        ({"kickoff_timeout": "inf"}, "'kickoff_timeout'"),
        ({"idempotency_keys": "maybe"}, "'idempotency_keys'"),
        ({"verify": "/nowhere/ca.pem"}, "'verify'"),
        ({"headers": "no"}, "'headers'"),
        ({"headers": {"X": 5}}, "'headers'"),
        ({"headers": {"X": "a\nb"}}, "'X'"),
        *(
            (
                {"headers": {"X-Good": "a", name: "short-and-secret"}},
                f"A name in {HEADERS} is not allowed in HTTP",
            )
            for name in ("X-Über", "X Y", "X\r\nZ", "X:", "", "X-Key: short-and-secret", "X\x7f", "X\n", "(X)", "X/Y")
        ),
        ({"proxy": 5}, "'proxy'"),
        ({"proxy": "socks5://user:short-and-secret@proxy.example:1080"}, "'proxy' is not an http or https address"),
        ({"proxy": "http://user:12-short-and-secret/@proxy.example"}, "'proxy' is not an http or https address"),
        ({"crew_webhook_secret": "short-and-secret"}, "'crew_webhook_secret'"),
        ({"crew_webhook_secret": "with/" + "x" * 40}, "'crew_webhook_secret'"),
        ("[]", "Extra must be a JSON object"),
    ],
)
def test_an_extra_that_cannot_be_meant_is_refused_by_name(extra: Any, problem: str) -> None:
    with pytest.raises(CrewInvalidInput, match=problem) as error:
        connection(extra=extra)
    assert "'crew_x'" in str(error.value)
    assert "short-and-secret" not in str(error.value)


@pytest.mark.usefixtures("simulated_airflow")
@pytest.mark.parametrize("name", ["X-Über", "X Y", "X\r\nZ"])
def test_an_unfit_header_name_ends_each_task_at_once(server: FaultServer, connect: Connect, name: str) -> None:
    connect(server.url, headers={name: "short-and-secret"})
    wait = {"task_id": "wait", "kickoff_id": "k-1", "poke_interval": 0.1, "timeout": 5}
    for task in (
        CrewKickoffOperator(task_id="kickoff", inputs={}),
        CrewKickoffOperator(task_id="kickoff", inputs={}, check_inputs=False),
        CrewStatusSensor(**wait, deferrable=False),
        CrewStatusSensor(**wait, deferrable=True),
    ):
        with pytest.raises(
            CrewTaskFailed, match=r"^Connection 'crew_default': A name in Extra 'headers' is not allowed"
        ) as error:
            run(task, TaskRun())
        assert "short-and-secret" not in str(error.value)
    assert server.requests == []


def test_any_token_may_be_the_name_of_a_header(ask: Ask, server: FaultServer) -> None:
    name = "".join(each for each in map(chr, range(33, 127)) if each not in '"(),/:;<=>?@[\\]{}')
    read = connection(host=server.url, extra={"headers": {name: "a b"}}).deployment
    server.on("POST /kickoff", {"kickoff_id": "k-1"})
    ask(KICKOFF, headers=read.headers)
    assert server.requests[0].headers[name.lower()] == "a b"


@pytest.mark.parametrize("password", [None, "", "  "])
def test_a_missing_token_is_refused_saying_where_to_find_one(password: str | None) -> None:
    with pytest.raises(CrewInvalidInput, match="Status tab"):
        connection(password=password)


@pytest.mark.parametrize("password", ["a\nb", "ü-token", "a\x00b"])
def test_a_token_unfit_for_headers_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(CrewInvalidInput, match="nothing was sent") as error:
        connection(password=password)
    assert password not in str(error.value)
    assert repr(password) not in repr(error.value)


def test_numbers_and_booleans_may_be_texts() -> None:
    extra = {"timeout": "5", "kickoff_timeout": "7.5", "verify": "False", "idempotency_keys": "true"}
    read = connection(extra=extra)
    deployment = read.deployment
    assert (deployment.timeout, deployment.kickoff_timeout, deployment.verify) == (5.0, 7.5, False)
    assert read.idempotency_keys is True


def test_a_proxy_without_a_scheme_is_an_http_proxy() -> None:
    assert connection(extra={"proxy": "proxy:3128"}).deployment.proxy == "http://proxy:3128"


def test_a_connection_given_as_a_uri_works(monkeypatch: pytest.MonkeyPatch, server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": ["topic"]})
    monkeypatch.setenv("AIRFLOW_CONN_CREW_URI", f"crew://:{TOKEN}@127.0.0.1:{server.port}/http?timeout=5&verify=false")
    hook = CrewHook("crew_uri")
    assert hook.get_inputs() == ["topic"]
    assert (hook.connection.deployment.timeout, hook.connection.deployment.verify) == (5.0, False)


def test_the_test_button_says_what_the_crew_asks_for(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": ["topic", "tone"]})
    assert CrewHook().test_connection() == (True, "The crew responded; its inputs: topic, tone")


@pytest.mark.parametrize(
    "fault", [Reply(status=401, body={"detail": TOKEN}), Reply(body="<html>"), NoReply(RESET), Reply(status=404)]
)
def test_the_test_button_says_what_is_wrong_without_the_token(server: FaultServer, fault: Any) -> None:
    server.on("GET /inputs", fault)
    works, said = CrewHook().test_connection()
    assert not works
    assert said
    assert TOKEN not in said


def test_the_test_button_names_a_field_that_cannot_be_read(connect: Connect) -> None:
    connect("")
    assert CrewHook().test_connection()[0] is False


@pytest.mark.parametrize("answer", [Reply(body={"status": "running"}), 400, 404, 405])
def test_a_stop_is_believed_only_where_the_service_says_so(server: FaultServer, answer: Any) -> None:
    server.on("POST /stop/k-1", answer)
    assert CrewHook().stop("k-1") is False
    server.on("POST /stop/k-1", {"status": "stopped", "kickoffId": "k-1"})
    assert CrewHook().stop("k-1") is True
