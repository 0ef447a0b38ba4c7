"""Row S6 and the two kinds of tokens."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import requests
from crew_client import SLOW, Serve

from crew_service.engine.principals import BadToken, Principal, Tokens
from crew_service.http.dialects import DIALECTS
from crew_service.http.endpoints import table
from crew_service.scripted_crew import DEMO, ScriptedCrew
from scripts.stack.waiting import PATIENCE

DENIED = {"detail": "Invalid or missing authentication credentials"}
WORDS = pytest.mark.parametrize(("dialect", "detail"), [("spec", DENIED["detail"]), ("live", "Not authenticated")])
TOKEN = "organization-token-0123456789"
PATHS = [
    *(
        (each.method, each.path.format(kickoff_id=uuid4(), id=uuid4(), name="x"))
        for each in table(DIALECTS["spec"]())
        if each.needs_token
    ),
    ("GET", "/"),
    ("GET", "/nothing-there"),
    ("PATCH", "/kickoff"),
    ("OPTIONS", "/kickoff"),
]


@pytest.mark.row("S6")
@WORDS
def test_a_request_without_header_is_denied_in_the_dialects_words(serve: Serve, dialect: str, detail: str) -> None:
    answer = requests.get(f"{serve(dialect=dialect, token=TOKEN).url}/inputs", timeout=PATIENCE)
    assert (answer.status_code, answer.json()) == (401, {"detail": detail})
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.long
@pytest.mark.row("S6")
@WORDS
@pytest.mark.parametrize("shown", [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer ü"])
def test_without_a_valid_token_every_path_answers_the_same_401(
    serve: Serve, dialect: str, detail: str, shown: str | None
) -> None:
    client = serve(dialect=dialect, token=TOKEN)
    assert len(PATHS) >= 10
    headers, denied = ({}, {"detail": detail}) if shown is None else ({"Authorization": shown.encode()}, DENIED)
    for method, path in PATHS:
        answer = requests.request(method, client.url + path, headers=headers, timeout=PATIENCE)
        assert (answer.status_code, answer.json()) == (401, denied), (method, path)
        assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.row("S6")
def test_the_scheme_is_read_in_any_case(serve: Serve) -> None:
    client = serve(token=TOKEN)
    for scheme in ("bearer", "BEARER", "Bearer"):
        headers = {"Authorization": f"{scheme} {TOKEN}"}
        assert requests.get(f"{client.url}/inputs", headers=headers, timeout=PATIENCE).status_code == 200


@pytest.mark.row("S6")
@pytest.mark.parametrize("path", ["/kickoff", "/human_feedback_requests/x/respond?token=y"])
@pytest.mark.parametrize("announced", [{}, {"flow_webhook": "http://127.0.0.1:9/", "flow_webhook_secret": "x"}])
def test_the_401_comes_before_the_body(serve: Serve, path: str, announced: dict[str, str]) -> None:
    crew = ScriptedCrew(DEMO)
    crew.kind = "flow"
    parts = urlsplit(serve(crew=crew, **announced).url)
    with socket.create_connection((parts.hostname, parts.port), PATIENCE) as half:
        half.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode())
        assert half.recv(4096).startswith(b"HTTP/1.1 401")


@pytest.mark.row("S6")
def test_every_known_token_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    from crew_service.engine import principals

    compared: list[int] = []
    real = principals.hmac.compare_digest
    monkeypatch.setattr(principals.hmac, "compare_digest", lambda a, b: compared.append(len(a)) or real(a, b))
    tokens = Tokens([(Principal(), "org"), (Principal("ann"), "a"), (Principal("bob"), "b")])
    assert [tokens.caller(token) for token in ("org", "a", "nobody's")] == [Principal(), Principal("ann"), None]
    assert compared == [32] * 9, "digests of one length, all of them, each time"


@pytest.mark.parametrize(("organization", "user"), [("same", "same"), ("with space", "x"), ("x", "ü"), ("x", "a\nb")])
def test_equal_tokens_and_those_that_cannot_be_sent_are_refused(organization: str, user: str) -> None:
    with pytest.raises(BadToken):
        Tokens([(Principal(), organization), (Principal("ann"), user)])


def test_without_a_token_health_and_the_documentation_are_there(serve: Serve) -> None:
    client = serve()
    assert requests.get(f"{client.url}/healthz", timeout=PATIENCE).json() == {"status": "ok"}
    assert requests.get(f"{client.url}/openapi.json", timeout=PATIENCE).json()["openapi"].startswith("3.1")
    assert "swagger-ui" in requests.get(f"{client.url}/docs", timeout=PATIENCE).text


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_users_see_their_own_executions_and_the_organization_sees_all(serve: Serve, dialect: str) -> None:
    users = [("ann", "ann-token"), ("bob", "bob-token")]
    client = serve(SLOW, dialect=dialect, user_tokens=users)
    ann, bob = client.holding("ann-token"), client.holding("bob-token")
    anns, mine = ann.kickoff(), client.kickoff()
    word = {"spec": "running", "live": "RUNNING"}[dialect]
    ann.until(anns, word)
    client.until(anns, word)
    unknown = bob.get(f"/status/{uuid4()}")
    for caller, kickoff_id in ((bob, anns), (ann, mine)):
        answer = caller.get(f"/status/{kickoff_id}")
        assert (answer.status_code, answer.json()) == (unknown.status_code, unknown.json())
        assert caller.post(f"/stop/{kickoff_id}").status_code == 404
    assert ann.post(f"/stop/{anns}").status_code == 200
    assert client.post(f"/stop/{mine}").status_code == 200


def test_a_user_cannot_decide_for_another_ones_execution(serve: Serve) -> None:
    client = serve(user_tokens=[("ann", "ann-token"), ("bob", "bob-token")])
    ann, bob = client.holding("ann-token"), client.holding("bob-token")
    kickoff_id = ann.kickoff()
    ann.until(kickoff_id, "pending")
    assert bob.resume(kickoff_id).status_code == 404
    assert client.resume(kickoff_id).status_code == 200


def test_no_token_stands_in_the_database_or_the_log(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="crew_service")
    client = serve(token=TOKEN, user_tokens=[("ann", "ann-secret-token")])
    user = client.holding("ann-secret-token")
    key: dict[str, Any] = {"headers": {"Idempotency-Key": "k"}}
    for caller in (client, user, client.holding("wrong-secret-token")):
        caller.post("/kickoff", {"inputs": {"topic": "AI"}}, **key)
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in (TOKEN, "ann-secret-token", "wrong-secret-token"):
        assert secret.encode() not in stored
        assert secret not in caplog.text
