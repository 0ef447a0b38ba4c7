"""A POST is sent once; one whose answer is lost is of unknown outcome."""

from __future__ import annotations

import json

import pytest
from client_calls import KICKOFF, LOST, RESUME, Ask
from faults.dialects import LIVE, SPEC, Dialect
from faults.server import FaultServer
from faults.wire import Reply

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import Kickoff
from airflow_crew_provider.exceptions import CrewOutcomeUnknown, CrewServerError
from airflow_crew_provider.models import Started


def test_a_kickoff_sends_what_both_dialects_take(ask: Ask, server: FaultServer) -> None:
    server.on("POST /kickoff", {"kickoff_id": "k-1"})
    assert ask(KICKOFF) == Started("k-1")
    (request,) = server.requests
    assert request.json == {"inputs": {"topic": "AI"}}
    assert request.headers["content-type"] == "application/json"
    assert "idempotency-key" not in request.headers


@pytest.mark.parametrize("text", ["plain", "中文", "é\u2028\x00", "😀", 'a "quote" \\ and \n'])
def test_a_body_is_utf_8_without_escapes(ask: Ask, server: FaultServer, text: str) -> None:
    server.on("POST /kickoff", {"kickoff_id": "k-1"})
    ask(endpoints.kickoff(Kickoff(inputs={text: text})))
    (request,) = server.requests
    assert request.body == json.dumps({"inputs": {text: text}}, ensure_ascii=False).encode()
    assert request.json == {"inputs": {text: text}}
    assert request.headers["content-length"] == str(len(request.body))


@pytest.mark.parametrize(
    ("text", "sent", "read"),
    [
        ("a\ud800b", "a\\ud800b", "a\ud800b"),
        ("中\udfff", "中\\udfff", "中\udfff"),
        ("\ud83d\ude00", "\\ud83d\\ude00", "😀"),
    ],
    ids=["the first half", "the second half", "both"],
)
def test_halves_of_surrogate_pairs_are_sent_as_escapes(
    ask: Ask, server: FaultServer, text: str, sent: str, read: str
) -> None:
    server.on("POST /kickoff", {"kickoff_id": "k-1"})
    ask(endpoints.kickoff(Kickoff(inputs={"topic": text})))
    (request,) = server.requests
    assert f'"{sent}"'.encode() in request.body
    assert request.json == {"inputs": {"topic": read}}


WITHOUT_ID = {
    "no id": Reply(body={"status": "ok"}),
    "an empty id": Reply(body={"kickoff_id": ""}),
    "an id of dots": Reply(body={"kickoff_id": ".."}),
    "an id of a number": Reply(body={"kickoff_id": 5}),
    "an id of 10 kB": Reply(body={"kickoff_id": "x" * 10_000}),
}


@pytest.mark.row("N11")
@pytest.mark.parametrize("fault", [*LOST, *WITHOUT_ID])
def test_a_kickoff_with_lost_response_is_unknown_and_sent_once(ask: Ask, server: FaultServer, fault: str) -> None:
    server.on("POST /kickoff", {**LOST, **WITHOUT_ID}[fault])
    with pytest.raises(CrewOutcomeUnknown, match=r"unknown|not known"):
        ask(KICKOFF, kickoff_timeout=1.0)
    assert len(server.sent("POST /kickoff")) == 1


@pytest.mark.row("N11")
def test_a_500_is_a_server_error_and_sent_once(ask: Ask, server: FaultServer) -> None:
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
def test_a_resume_with_lost_response_is_unknown_and_sent_once(ask: Ask, server: FaultServer, fault: str) -> None:
    server.on("POST /resume", {**LOST, **RESUMED_NONSENSE}[fault])
    with pytest.raises(CrewOutcomeUnknown):
        ask(RESUME, kickoff_timeout=1.0)
    assert len(server.sent("POST /resume")) == 1


@pytest.mark.parametrize(("dialect_", "polled"), [(SPEC, "k-1"), (LIVE, "k-2")], ids=["spec", "live"])
def test_a_resume_returns_which_id_to_poll(ask: Ask, server: FaultServer, dialect_: Dialect, polled: str) -> None:
    server.on("POST /resume", dialect_.resumed)
    assert ask(RESUME).kickoff_id == polled
    body = server.requests[0].json
    assert (body["execution_id"], body["executionId"]) == ("k-1", "k-1")
    assert (body["task_id"], body["taskId"], body["is_approve"], body["isApprove"]) == ("t", "t", True, True)
    assert (body["human_feedback"], body["humanFeedback"]) == ("Approved.", "Approved.")
