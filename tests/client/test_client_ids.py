"""An id travels as one path segment, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from client_calls import Ask
from faults.dialects import SPEC
from faults.server import FaultServer

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import Resume
from airflow_crew_provider.exceptions import CrewInvalidInput

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
def test_an_id_reaches_the_service_as_one_segment(ask: Ask, server: FaultServer, identifier: str) -> None:
    server.on("GET *", SPEC.running).on("POST *", {"status": "stopped"})
    ask(endpoints.status(identifier))
    ask(endpoints.stop(identifier))
    assert [each.target for each in server.requests] == [f"/status/{IDS[identifier]}", f"/stop/{IDS[identifier]}"]


@pytest.mark.row("N15")
@pytest.mark.parametrize("identifier", ["", ".", "..", "x" * 2049, "ü" * 1025, "x" * 10_000, None, 5, b"k", "\ud800"])
def test_an_invalid_id_is_refused_before_anything_is_sent(identifier: Any) -> None:
    for call in (endpoints.status, endpoints.stop):
        with pytest.raises(CrewInvalidInput, match="nothing was sent"):
            call(identifier)
    for execution_id, crew_task_id in ((identifier, "t"), ("k-1", identifier)):
        with pytest.raises(CrewInvalidInput):
            endpoints.resume(
                Resume(execution_id=execution_id, crew_task_id=crew_task_id, human_feedback="x", is_approve=True)
            )
