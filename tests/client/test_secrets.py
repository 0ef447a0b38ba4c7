"""The token is in no error: not in its text, its attributes, its causes, and not where the service echoes it."""

from __future__ import annotations

import base64
import inspect
import itertools
import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import pytest
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import Kickoff, Resume
from airflow_crew_provider.client.client import Client
from airflow_crew_provider.client.deployment import Deployment
from airflow_crew_provider.exceptions import CrewAlreadyContinued, CrewApiError, CrewConnectionError, CrewError
from airflow_crew_provider.models import HumanInputWebhook, Webhooks, WrittenFile

Ask = Callable[..., Any]
TOKEN = "tok/en+with=specials~0123456789"
FORMS = {
    "as it is": TOKEN,
    "in a header": f"Bearer {TOKEN}",
    "quoted": quote(TOKEN),
    "quoted to the last": quote(TOKEN, safe=""),
    "quoted in lower case": quote(TOKEN, safe="").replace("%2F", "%2f").replace("%2B", "%2b").replace("%3D", "%3d"),
    "as form data": quote_plus(TOKEN),
    "as JSON": json.dumps({"seen": TOKEN}),
    "in HTML": f"<html><body>{TOKEN.replace(chr(43), '&#43;')}</body></html>",
    "with a control character inside": f"{TOKEN[:9]}\x01{TOKEN[9:]}",
    "with an entity inside": f"<html><body>{TOKEN[:9]}&#1;{TOKEN[9:]}</body></html>",
    "at the cut of a long text": "x" * 480 + TOKEN,
    "at the cut of a short text": "x" * 190 + TOKEN,
    "at the cut of a huge text": "x " * 9_990 + TOKEN,
}


class Letters:
    def read(self, size: int) -> bytes:
        return b"x" * size


CALLS = {
    "inputs": endpoints.inputs(),
    "details": endpoints.details("k-1", '"etag"'),
    "ended_tasks": endpoints.ended_tasks("k-1"),
    "open_round": endpoints.open_round("k-1"),
    "kickoff": endpoints.kickoff(Kickoff(inputs={"topic": "AI"})),
    "status": endpoints.status("k-1"),
    "polls": endpoints.polls("k-1"),
    "resume": endpoints.resume(Resume(execution_id="k-1", crew_task_id="t", human_feedback="ok", is_approve=True)),
    "executions": endpoints.executions(),
    "stop": endpoints.stop("k-1"),
    "statuses": endpoints.statuses(["k-1"]),
    "files_of_question": endpoints.files_of_question("k-1"),
    "written_files": endpoints.written_files("k-1"),
    "written_file": endpoints.written_file("k-1", WrittenFile("a.md", 1, 1, "0" * 64)),
    "upload": endpoints.upload(endpoints.Upload("report", "report.txt", 2, Letters())),
}


def test_every_endpoint_that_the_client_knows_is_among_these_calls() -> None:
    made_by = {
        name
        for name, function in vars(endpoints).items()
        if inspect.isfunction(function)
        and not name.startswith("_")
        and str(function.__annotations__.get("return", "")).startswith("Call[")
    }
    assert set(CALLS) == made_by


def texts(value: Any, seen: set[int] | None = None) -> Iterator[str]:
    """Every text that hangs on an error, however deep."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, str | bytes):
        yield value if isinstance(value, str) else value.decode("utf-8", "replace")
    elif isinstance(value, dict):
        for item in (*value.keys(), *value.values()):
            yield from texts(item, seen)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from texts(item, seen)
    elif isinstance(value, BaseException):
        yield from (str(value), repr(value), *getattr(value, "__notes__", []))
        yield from traceback.format_exception_only(value)
        for item in (value.args, value.__cause__, value.__context__, vars(value)):
            yield from texts(item, seen)
    elif hasattr(value, "__dict__"):
        yield from texts(vars(value), seen)


def assert_hidden(value: Any, secret: str = TOKEN, where: Any = "") -> None:
    """Neither the secret nor a piece of it that a cut has left."""
    for text in texts(value):
        text = text.replace("\x01", "")  # which nobody sees
        for form in (secret, quote(secret), quote(secret, safe=""), secret[:8], secret[-10:]):
            assert form not in text, (where, text[:300])


@pytest.mark.parametrize("name", ["inputs", "kickoff", "status"])
def test_a_token_echoed_by_a_response_stays_out_of_errors(ask: Ask, server: FaultServer, name: str) -> None:
    for form, status in itertools.product(FORMS, [200, 204, 302, 400, 401, 404, 418, 422, 429, 500, 502]):
        _echo(server, FORMS[form], status)
        with pytest.raises(CrewError) as error:
            ask(CALLS[name])
        assert_hidden(error.value, where=(form, status))
        assert_hidden(pickle.loads(pickle.dumps(error.value)), where=(form, status))


def test_an_id_holding_the_token_never_names_a_continuing_execution(ask: Ask, server: FaultServer) -> None:
    call = endpoints.kickoff(Kickoff(inputs={}, continue_from="k-1"))
    for echoed, kind in ((f"k-{TOKEN}", CrewApiError), ("k-2", CrewAlreadyContinued)):
        server.on("POST *", Reply(status=409, body={"detail": TOKEN, "kickoff_id": echoed}))
        with pytest.raises(CrewApiError) as error:
            ask(call)
        assert type(error.value) is kind
        assert_hidden(error.value)
        assert_hidden(pickle.loads(pickle.dumps(error.value)))


def _echo(server: FaultServer, echoed: str, status: int) -> None:
    place = TOKEN if "<html>" in echoed else echoed  # a header has no entities
    headers = {"Location": f"https://elsewhere/{place}"} if status == 302 else {}
    reply = Reply(status=status, body="" if status in (204, 302) else echoed, headers=headers)
    server.on("GET *", reply).on("POST *", reply)


@pytest.mark.parametrize("key", ["detail", "error", "message", "nested"])
def test_a_json_refusal_that_echoes_the_token_is_masked(ask: Ask, server: FaultServer, key: str) -> None:
    body = {"detail": [{"loc": ["body", TOKEN], "msg": TOKEN}]} if key == "nested" else {key: f"no: {TOKEN}"}
    server.on("POST *", Reply(status=422, body=body))
    with pytest.raises(CrewError) as error:
        ask(CALLS["kickoff"])
    assert_hidden(error.value)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "fault", [NoReply(RESET), Reply(body=b"{}", stop_after=1, end=RESET), Reply(body=b"x", delay=9)]
)
def test_a_broken_exchange_leaves_no_token_in_the_error(ask: Ask, server: FaultServer, name: str, fault: Any) -> None:
    server.on("GET *", fault).on("POST *", fault)
    with pytest.raises(CrewError) as error:
        ask(CALLS[name], timeout=0.2, kickoff_timeout=0.2)
    assert_hidden(error.value)


def test_a_failed_connection_leaves_no_credential_in_the_error(ask: Ask) -> None:
    with FaultServer(listening=False) as closed:
        proxy = closed.url.replace("//", "//user:proxy-pa55word@")
        with pytest.raises(CrewConnectionError) as error:
            ask(CALLS["status"], base_url="http://crew.example", proxy=proxy)
    assert_hidden(error.value)
    assert_hidden(error.value, "proxy-pa55word")


PASSWORDS = {"plain": "proxy-pa55word", "quoted in part": "proxy%3Apa55%21word", "with a slash": "proxy/pa55word"}


@pytest.mark.row("N16")
@pytest.mark.parametrize("scheme", ["http://", ""])
@pytest.mark.parametrize("password", PASSWORDS.values(), ids=PASSWORDS)
def test_the_credential_of_a_proxy_in_the_environment_is_hidden(
    ask: Ask, no_proxy_variables: pytest.MonkeyPatch, password: str, scheme: str
) -> None:
    with FaultServer() as proxy:
        proxy.on("CONNECT crew.example:443", 407)
        no_proxy_variables.setenv("https_proxy", proxy.url.replace("http://", f"{scheme}user:{password}@"))
        with pytest.raises(CrewConnectionError) as error:
            ask(CALLS["status"], base_url="https://crew.example")
    assert_hidden(error.value, password)
    assert_hidden(error.value, unquote(password))


@pytest.mark.row("N16")
@pytest.mark.parametrize("place", ["connection", "environment"])
def test_a_credential_echoed_by_a_proxy_stays_out_of_errors(
    ask: Ask, no_proxy_variables: pytest.MonkeyPatch, place: str
) -> None:
    with FaultServer() as proxy:
        proxy.on("GET *", lambda asked: Reply(status=407, body=f"refused: {asked.headers['proxy-authorization']}"))
        url = proxy.url.replace("//", "//user:proxy-pa55word@")
        no_proxy_variables.setenv("http_proxy", url if place == "environment" else "")
        with pytest.raises(CrewError, match=r"refused: Basic \*\*\*") as error:
            ask(CALLS["status"], base_url="http://crew.example", proxy=url if place == "connection" else None)
    assert_hidden(error.value, base64.b64encode(b"user:proxy-pa55word").decode())


def test_long_extra_headers_are_hidden_as_well(ask: Ask, server: FaultServer) -> None:
    server.on("GET *", Reply(status=400, body="the key 0123456789abcdef is wrong"))
    with pytest.raises(CrewError) as error:
        ask(CALLS["status"], headers=(("X-Api-Key", "0123456789abcdef"),))
    assert "the key *** is wrong" in str(error.value)
    assert_hidden(error.value, "0123456789abcdef")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("Authorization", "Bearer ", ""),
        ("Authorization", "Basic ", "=="),
        ("Authorization", 'Token token="', '"'),
        ("Cookie", "theme=dark; session=", "; lang=en"),
    ],
)
def test_a_credential_within_an_extra_header_is_hidden(
    ask: Ask, server: FaultServer, name: str, before: str, after: str
) -> None:
    server.on("GET *", Reply(status=401, body={"detail": "Invalid token sekret-abcdef-123"}))
    with pytest.raises(CrewError, match=r"Invalid token \*\*\*") as error:
        ask(CALLS["status"], token="", headers=((name, f"{before}sekret-abcdef-123{after}"),))
    assert_hidden(error.value, "sekret-abcdef-123")


def test_header_words_and_short_proxy_passwords_hide_no_other_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://u:p@proxy.example:3128")
    deployment = Deployment(
        "https://x", TOKEN, headers=(("X-Team", "content marketing"), ("User-Agent", "our pipeline"))
    )
    assert deployment.mask("marketing_plan, by the pipeline's expert") == "marketing_plan, by the pipeline's expert"
    assert deployment.mask("team: content marketing") == "team: ***"


def test_a_proxys_user_without_a_password_is_its_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://token-0123@proxy.example:3128")
    sent = base64.b64encode(b"token-0123:").decode()
    assert Deployment("https://x", TOKEN).mask(f"token-0123 as {sent}") == "*** as ***"


def test_the_credential_of_a_webhook_is_hidden(server: FaultServer) -> None:
    human = HumanInputWebhook("https://inbox.example", token="webhook-token-0123")
    call = endpoints.kickoff(Kickoff(inputs={}, webhooks=Webhooks(human_input=human)))
    server.on("POST *", Reply(status=400, body=f"bad webhook {json.dumps(call.body)}"))
    with pytest.raises(CrewError) as error:
        Client(Deployment(server.url, TOKEN)).send(call, secrets=("webhook-token-0123",))
    assert_hidden(error.value, "webhook-token-0123")
    assert "webhook-token" not in repr(human)


def test_a_deployment_shows_neither_token_nor_headers_nor_proxy() -> None:
    shown = repr(Deployment("https://x", TOKEN, headers=(("X-Key", "header-value"),), proxy="http://u:pa55@p"))
    assert TOKEN not in shown
    assert "header-value" not in shown
    assert "pa55" not in shown


def test_a_failure_that_echoes_the_token_is_masked(ask: Ask, server: FaultServer) -> None:
    for body in ({"status": "error", "error": f"bad {TOKEN}"}, {"state": "FAILED", "status": f"bad {TOKEN}"}):
        server.on("GET *", body)
        assert ask(CALLS["status"]).error == "bad ***"


def test_a_token_echoed_by_a_status_stays_out_of_logs(
    ask: Ask, server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.on("GET *", {"status": f"odd {TOKEN}", "current_task": TOKEN, "note": TOKEN})
    with caplog.at_level(logging.DEBUG):
        execution = ask(CALLS["status"])
    assert_hidden([record.getMessage() for record in caplog.records])
    assert TOKEN not in execution.progress
