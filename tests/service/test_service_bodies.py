"""Row S3: whatever comes over the wire, the answer is a 4xx with a JSON detail, and nothing is stored."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from crew_client import Client

from crew_service.local import running_service
from scripts.stack.waiting import PATIENCE

LIMIT = 1024 * 1024
GOOD = {"inputs": {"topic": "AI"}}
BAD_BODIES = {
    "nothing": b"",
    "half": b'{"inputs": {"topic": "AI"',
    "two values": b"{} {}",
    "a list": b"[]",
    "null": b"null",
    "text": b'"inputs"',
    "single quotes": b"{'inputs': {}}",
    "NaN": b'{"inputs": {"topic": NaN}}',
    "Infinity": b'{"inputs": {"topic": -Infinity}}',
    "a number out of range": b'{"inputs": {"topic": 1e999}}',
    "an integer of 10,000 digits": b'{"inputs": {"topic": ' + b"1" * 10_000 + b"}}",
    "a nesting bomb of lists": b'{"inputs": ' + b"[" * 200_000,
    "a nesting bomb of objects": b'{"a":' * 150_000,
    "closed nesting": b'{"inputs": {"topic": ' + b"[" * 300 + b"]" * 300 + b"}}",
    "a lone surrogate": b'{"inputs": {"topic": "\\ud800"}}',
    "a lone surrogate in a name": b'{"inputs": {"topic": "x", "\\udc00": 1}}',
    "invalid UTF-8": b'{"inputs": {"topic": "\xff\xfe"}}',
    "UTF-16": '{"inputs": {"topic": "x"}}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(GOOD).encode(),
    "a name twice": b'{"inputs": {"topic": "a"}, "inputs": {"topic": "b"}}',
    "control characters": b'{"inputs": {"topic": "a\x00b"}}',
}
WRONG_FIELDS: dict[str, dict[str, Any]] = {
    "inputs as text": {"inputs": "topic"},
    "inputs as a list": {"inputs": ["topic"]},
    "meta as text": {**GOOD, "meta": "x"},
    "a URL as a number": {**GOOD, "taskWebhookUrl": 1},
    "an empty URL": {**GOOD, "taskWebhookUrl": ""},
    "a file URL": {**GOOD, "crewWebhookUrl": "file:///etc/passwd"},
    "a URL without a host": {**GOOD, "stepWebhookUrl": "http://"},
    "a URL with a space": {**GOOD, "stepWebhookUrl": "http://a b"},
    "a URL with a line break": {**GOOD, "stepWebhookUrl": "http://a/\nX: y"},
    "a port out of range": {**GOOD, "stepWebhookUrl": "http://a:99999/"},
    "a colon in the user of a URL": {**GOOD, "stepWebhookUrl": "http://a%3Ab:c@a/"},
    "a user that no header can name": {**GOOD, "taskWebhookUrl": "http://%E7%94%A8:c@a/"},
    "a password that no header can name": {**GOOD, "crewWebhookUrl": "http://a:%E7%94%A8@a/"},
    "a hook without a URL": {**GOOD, "humanInputWebhook": {}},
    "an unknown strategy": {**GOOD, "humanInputWebhook": {"url": "http://a", "authentication": {"strategy": "x"}}},
    "bearer without a token": {
        **GOOD,
        "humanInputWebhook": {"url": "http://a", "authentication": {"strategy": "bearer"}},
    },
    "a token with a line break": {
        **GOOD,
        "humanInputWebhook": {"url": "http://a", "authentication": {"strategy": "bearer", "token": "a\r\nX: y"}},
    },
    "basic without a password": {
        **GOOD,
        "humanInputWebhook": {"url": "http://a", "authentication": {"strategy": "basic", "username": "u"}},
    },
}
DECISION: dict[str, Any] = {
    "execution_id": "7f0f3c1e-2b6b-4a57-9d8e-3a1f0f5f6f11",
    "task_id": "draft_task",
    "human_feedback": "fine",
    "is_approve": True,
}
WRONG_DECISIONS: dict[str, dict[str, Any]] = {
    **{f"no {name}": {k: v for k, v in DECISION.items() if k != name} for name in DECISION},
    **{f"{name} null": {**DECISION, name: None} for name in DECISION},
    **{f"{name} as a number": {**DECISION, name: 1} for name in DECISION},
    "the word true": {**DECISION, "is_approve": "true"},
    "the id as a list": {**DECISION, "execution_id": [DECISION["execution_id"]]},
}


@pytest.fixture(scope="module", params=["spec", "live"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    db = tmp_path_factory.mktemp("bodies") / "service.db"
    with running_service(dialect=request.param, db=db, max_body=LIMIT, body_seconds=1.0) as service:
        client = Client(service.url, service.token)
        client.dialect = request.param  # type: ignore[attr-defined]
        yield client


def refusal(client: Client) -> int:
    """What a dialect answers to a body that it cannot read."""
    return 400 if client.dialect == "spec" else 422  # type: ignore[attr-defined]


def stored(client: Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("crew_service_executions{"))


@pytest.mark.long
@pytest.mark.row("S3")
@pytest.mark.parametrize("path", ["/kickoff", "/resume"])
@pytest.mark.parametrize("name", BAD_BODIES)
def test_what_is_no_json_object_is_refused_and_not_stored(client: Client, path: str, name: str) -> None:
    before = stored(client)
    headers = {"Content-Type": "application/json"}
    answer = client.session.post(client.url + path, data=BAD_BODIES[name], headers=headers, timeout=PATIENCE)
    assert answer.status_code == refusal(client), answer.text
    assert answer.json()["detail"]
    assert stored(client) == before


@pytest.mark.row("S3")
@pytest.mark.parametrize("name", WRONG_FIELDS)
def test_a_wrongly_typed_kickoff_is_refused_and_not_stored(client: Client, name: str) -> None:
    before = stored(client)
    answer = client.post("/kickoff", WRONG_FIELDS[name])
    assert answer.status_code == refusal(client), answer.text
    assert answer.json()["detail"]
    assert stored(client) == before


@pytest.mark.row("S3")
@pytest.mark.parametrize("client", ["spec"], indirect=True)
@pytest.mark.parametrize("name", WRONG_DECISIONS)
def test_a_wrong_decision_is_refused_and_names_the_field(client: Client, name: str) -> None:
    answer = client.post("/resume", WRONG_DECISIONS[name])
    assert answer.status_code == 400, answer.text
    assert any(field in answer.json()["detail"] for field in DECISION)


@pytest.mark.row("S3")
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"])
def test_another_content_type_is_refused(client: Client, kind: str) -> None:
    headers = {"Content-Type": kind}
    answer = client.session.post(f"{client.url}/kickoff", data=json.dumps(GOOD), headers=headers, timeout=PATIENCE)
    assert answer.status_code == refusal(client)
    assert "application/json" in str(answer.json()["detail"])


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", None])
def test_json_in_any_spelling_of_the_content_type_is_read(client: Client, kind: str | None) -> None:
    headers = {"Content-Type": kind}
    answer = client.session.post(f"{client.url}/kickoff", data=json.dumps(GOOD), headers=headers, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text


@pytest.mark.row("S3")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_10_mb_is_a_413(client: Client, chunked: bool) -> None:
    body = json.dumps({"inputs": {"topic": "x" * 10_000_000}}).encode()
    data = iter([body[:5_000_000], body[5_000_000:]]) if chunked else body
    headers = {"Content-Type": "application/json"}
    answer = client.session.post(f"{client.url}/kickoff", data=data, headers=headers, timeout=PATIENCE)
    assert (answer.status_code, str(LIMIT) in answer.json()["detail"]) == (413, True)


@pytest.mark.row("S3")
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/kickoff"), ("PUT", "/kickoff"), ("DELETE", "/status/x"), ("POST", "/inputs"), ("GET", "/resume")],
)
def test_a_wrong_method_is_a_405_naming_the_right_one(client: Client, method: str, path: str) -> None:
    answer = client.session.request(method, client.url + path, timeout=PATIENCE)
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})
    assert answer.headers["Allow"]


@pytest.mark.row("S3")
@pytest.mark.parametrize("path", ["/nothing", "/status", "/status/a/b", "/kickoff/", "//", "/docs/x"])
def test_a_path_that_is_not_there_is_a_404(client: Client, path: str) -> None:
    answer = client.get(path, allow_redirects=False)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


@pytest.mark.row("S3")
def test_a_slow_client_gets_a_408_and_others_go_on(client: Client) -> None:
    parts = urlsplit(client.url)
    with socket.create_connection((parts.hostname, parts.port), PATIENCE) as slow:
        asked = "POST /kickoff HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
        slow.sendall(f'{asked}Authorization: Bearer {client.token}\r\n\r\n{{"inputs'.encode())
        assert client.get("/inputs").status_code == 200
        with slow.makefile("rb") as answer:  # head and body may come apart
            head = b"".join(iter(answer.readline, b"\r\n"))
            body = answer.read(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
    assert head.startswith(b"HTTP/1.1 408")
    assert b'"detail"' in body


@pytest.mark.long
@pytest.mark.row("S3")
def test_a_zero_character_and_every_other_text_survives(client: Client) -> None:
    topic = "a\x00b \U0001f600 \u202e \\ud800 </script> {x} %s \x7f"
    kickoff_id = client.kickoff(topic)
    word = "pending" if client.dialect == "spec" else "RUNNING"  # type: ignore[attr-defined]
    record = client.until(kickoff_id, word)
    if word == "pending":
        assert topic in record["task_output"]
    client.post(f"/stop/{kickoff_id}")


@pytest.mark.row("S3")
def test_the_service_lives_on(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
