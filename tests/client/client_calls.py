"""Calls that the tests of the client share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults.server import FaultServer
from faults.wire import CLOSE, RESET, SILENCE, NoReply, Reply

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import Kickoff, Resume
from airflow_crew_provider.client.client import Client
from airflow_crew_provider.client.deployment import Deployment

Ask = Callable[..., Any]

STATUS = endpoints.status("k-1")

POLL = "GET /status/k-1"

KICKOFF = endpoints.kickoff(Kickoff(inputs={"topic": "AI"}))

RESUME = endpoints.resume(Resume(execution_id="k-1", crew_task_id="t", human_feedback="Approved.", is_approve=True))

GATEWAY = "<html><head><style>p{}</style><title>502 Bad Gateway</title></head><body><h1>Sorry</h1></body></html>"

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


def send(server: FaultServer, call: Any, **deployment: Any) -> Any:
    return Client(Deployment(**{"base_url": server.url, "token": "token", "timeout": 5.0, **deployment})).send(call)
