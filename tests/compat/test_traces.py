"""Traces: a task's request names the task's span, and a try with another span is still the same request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from faults.server import FaultServer
from faults.wire import RESET, NoReply
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span
from simulated_airflow import Connect, TaskRun, die_after_recording, run

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.crew import CrewKickoffOperator

pytestmark = pytest.mark.usefixtures("simulated_airflow")
TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
POST = "POST /kickoff"
RESUME = "POST /resume"


@contextmanager
def a_try(number: int) -> Iterator[None]:
    """The span of a task, as the task runner of Airflow makes it current."""
    state = TraceState([("airflow/task_span_detail_level", "1")])
    with use_span(NonRecordingSpan(SpanContext(TRACE, number, True, TraceFlags(1), state))):
        yield


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "True")


@pytest.fixture(autouse=True)
def keyed(server: FaultServer, connect: Connect) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POST, {"kickoff_id": "k-1"}).on("GET /status/k-1", {"status": "running"})


def kickoff(**more: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(**{"task_id": "kickoff", "inputs": {"topic": "AI"}, "check_inputs": False, **more})


def parents(server: FaultServer, request: str) -> list[str | None]:
    return [sent.headers.get("traceparent") for sent in server.sent(request)]


def parent(number: int) -> str:
    return f"00-{TRACE:032x}-{number:016x}-01"


@pytest.mark.row("N31")
def test_a_post_resent_in_another_span_is_unchanged(server: FaultServer) -> None:
    server.on(POST, NoReply(RESET), {"kickoff_id": "k-1"})
    task_run = TaskRun()
    with a_try(1), pytest.raises(Exception, match="sends the kickoff again"):
        run(kickoff(), task_run)
    with a_try(2):
        assert run(kickoff(), task_run.retry()) == "k-1"
    assert parents(server, POST) == [parent(1), parent(2)]
    first, second = server.sent(POST)
    assert (first.body, first.headers["idempotency-key"]) == (second.body, second.headers["idempotency-key"])
    assert first.headers["tracestate"] == "airflow/task_span_detail_level=1"


@pytest.mark.row("N31")
@pytest.mark.parametrize("keys", [True, False])
def test_a_retry_in_another_span_finds_its_execution(server: FaultServer, connect: Connect, keys: bool) -> None:
    connect(server.url, idempotency_keys=keys)
    task_run = TaskRun()
    with a_try(1):
        die_after_recording(task_run, kickoff())
    with a_try(2):
        assert run(kickoff(), task_run.retry()) == "k-1"
    assert parents(server, POST) == [parent(1)]


@pytest.mark.row("N31")
@pytest.mark.usefixtures("a_state_store")
def test_no_record_holds_a_trace(server: FaultServer) -> None:
    task_run = TaskRun()
    with a_try(1):
        die_after_recording(task_run, kickoff())
    kept = json.dumps(task_run.store.get("crew_kickoff"))
    with a_try(2):
        run(kickoff(), task_run.retry())
    kept += json.dumps(task_run.store.get("crew_kickoff"))  # null on Airflow 2.11, once the task has succeeded
    assert "k-1" in kept
    assert f"{TRACE:x}" not in kept
    assert "trace" not in kept


def test_a_resume_names_the_span_of_its_task(server: FaultServer) -> None:
    server.on(RESUME, {"status": "resumed"})
    with a_try(3):
        CrewHook().resume("k-1", "write", "Approved.", True)
    assert parents(server, RESUME) == [parent(3)]


def test_polls_and_requests_outside_of_a_span_name_none(server: FaultServer) -> None:
    with a_try(1):
        CrewHook().get_status("k-1")
    CrewHook().kickoff({"topic": "AI"})
    assert parents(server, "GET /status/k-1") + parents(server, POST) == [None, None]


def test_airflows_switch_decides(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "False")
    with a_try(1):
        CrewHook().kickoff({"topic": "AI"})
    assert parents(server, POST) == [None]
