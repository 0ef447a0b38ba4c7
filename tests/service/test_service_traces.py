"""Traces: one for the whole life of an execution, received over a real socket from services that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from crew_client import GATED, Client, Command, eventually

from crew_service import tracing
from scripts.stack.collector import Collector
from scripts.stack.waiting import PATIENCE

TOKEN = "a-token-for-tests-only"
TRACE, TASK = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{TASK}-01"
Start = Callable[..., Command]
Traced = Callable[..., tuple[Command, Client]]


@pytest.fixture
def traced(command: Start, collector: Collector, tmp_path: Path) -> Traced:
    """Start a service that sends its spans to the collector."""
    (tmp_path / "gated.json").write_text(json.dumps(GATED))

    def start(*options: str, **environment: str) -> tuple[Command, Client]:
        started = command("--crew", "gated.json", *options, environment={"CREW_SERVICE_TOKEN": TOKEN, **environment})
        return started, started.client(TOKEN)

    return start


def kicked_off(client: Client, headers: dict[str, str] | None = None) -> str:
    answer = client.post("/kickoff", {"inputs": {"topic": "ducks"}}, headers=headers)
    assert answer.ok, answer.text
    return str(answer.json()["kickoff_id"])


def answer(client: Client, execution: str, headers: dict[str, str] | None = None) -> None:
    decision = {"task_id": "draft_task", "human_feedback": "", "is_approve": True}
    said = client.post("/resume", {"execution_id": execution, **decision}, headers=headers)
    assert said.ok, said.text


def test_an_execution_keeps_its_kickoffs_trace_through_review_and_restart(traced: Traced, collector: Collector) -> None:
    service, client = traced(**collector.environment)
    execution = kicked_off(client, {"traceparent": TRACEPARENT, "tracestate": "airflow/task_span_detail_level=1"})
    client.until(execution, "pending")
    eventually(lambda: len(collector.named("segment")) == 1, "the first segment's span")
    service.kill()
    service, client = traced(**collector.environment)
    answer(client, execution, {"traceparent": f"00-{TRACE}-00f067aa0ba902b8-01"})
    client.until(execution, "completed")
    eventually(lambda: len(collector.named("segment")) == 2, "the second segment's span")
    eventually(lambda: collector.named("POST /resume"), "the answer's span")
    assert {span.trace_id for span in collector.spans} == {TRACE}
    [kickoff], [resume] = collector.named("POST /kickoff"), collector.named("POST /resume")
    assert (kickoff.parent_id, resume.parent_id) == (TASK, "00f067aa0ba902b8")
    first, second = collector.named("segment")
    assert {first.parent_id, second.parent_id} == {kickoff.span_id}
    assert (first.links, second.links) == ((), (resume.span_id,))
    assert [span.parent_id for span in collector.named("queue")] == [kickoff.span_id] * 2
    tasks = sorted((span for span in collector.spans if "crew.task.id" in span.attributes), key=lambda span: span.begin)
    assert [(span.name, span.attributes["crew.task.id"], span.parent_id) for span in tasks] == [
        ("invoke_agent Researcher", "research_task", first.span_id),
        ("invoke_agent Writer", "draft_task", first.span_id),
        ("invoke_agent Editor", "publish_task", second.span_id),
    ]
    assert not any(b"ducks" in body for body in collector.raw)
    assert {span.attributes["crew.execution.id"] for span in (first, second)} == {execution}


def test_an_answer_on_another_machine_continues_the_same_trace(
    traced: Traced, collector: Collector, postgresql: str
) -> None:
    one, other = (traced("--db", postgresql, **collector.environment) for _ in range(2))
    execution = kicked_off(one[1], {"traceparent": TRACEPARENT})
    one[1].until(execution, "pending")
    eventually(lambda: len(collector.named("segment")) == 1, "the first segment's span")
    answer(other[1], execution, {"traceparent": f"00-{TRACE}-00f067aa0ba902b8-01"})
    other[1].until(execution, "completed")
    eventually(lambda: len(collector.named("segment")) == 2, "the second segment's span")
    [kickoff] = eventually(lambda: collector.named("POST /kickoff"), "the kickoff's span")
    [resume] = eventually(lambda: collector.named("POST /resume"), "the answer's span")
    assert {span.trace_id for span in collector.spans} == {TRACE}
    first, second = collector.named("segment")
    assert {first.parent_id, second.parent_id} == {kickoff.span_id}
    assert (first.links, second.links) == ((), (resume.span_id,))


def test_a_retry_with_another_parent_is_the_same_request(traced: Traced, collector: Collector) -> None:
    _, client = traced(**collector.environment)
    key = {"Idempotency-Key": "the-key"}
    first = kicked_off(client, {"traceparent": TRACEPARENT, **key})
    assert kicked_off(client, {"traceparent": TRACEPARENT.replace("b7-", "b8-"), **key}) == first
    assert kicked_off(client, key) == first


@pytest.mark.parametrize(
    "parent",
    ["", "x", TRACEPARENT[:-1], TRACEPARENT.upper(), f"00-{'0' * 32}-{TASK}-01", f"ff{TRACEPARENT[2:]}", "0" * 9000],
)
def test_a_context_that_is_not_valid_is_ignored(parent: str) -> None:
    assert tracing.received([(b"traceparent", parent.encode())]) is None


def test_a_context_is_read_as_the_recommendation_asks() -> None:
    parent = (b"traceparent", TRACEPARENT.encode())
    assert tracing.received([parent]) == {"traceparent": TRACEPARENT}
    assert tracing.received([parent, parent]) is None
    assert tracing.received([(b"traceparent", b"01" + TRACEPARENT[2:].encode() + b"-more")]) == {
        "traceparent": TRACEPARENT
    }
    states = [(b"tracestate", b"a=1"), (b"tracestate", b"b=2")]
    assert tracing.received([parent, *states]) == {"traceparent": TRACEPARENT, "tracestate": "a=1,b=2"}
    assert tracing.received([parent, (b"tracestate", b"a=" + b"x" * 511)]) == {"traceparent": TRACEPARENT}
    assert tracing.received(states) is None


def test_without_caller_context_an_execution_gets_its_own_trace(traced: Traced, collector: Collector) -> None:
    _, client = traced(**collector.environment)
    execution = kicked_off(client, {"traceparent": "00-nonsense"})
    client.until(execution, "pending")
    [segment] = eventually(lambda: collector.named("segment"), "the segment's span")
    [kickoff] = eventually(lambda: collector.named("POST /kickoff"), "the kickoff's span")
    assert (segment.trace_id, segment.parent_id) == (kickoff.trace_id, kickoff.span_id)
    assert kickoff.parent_id == ""


def test_a_caller_that_does_not_sample_is_followed(traced: Traced, collector: Collector) -> None:
    _, client = traced(**collector.environment)
    for flags in ("00", "01"):
        execution = kicked_off(client, {"traceparent": f"00-{flags * 16}-{TASK}-{flags}".replace("00000", "0000a")})
        client.until(execution, "pending")
    eventually(lambda: collector.named("segment"), "the span of the sampled one")
    assert {span.trace_id for span in collector.spans} == {"01" * 16}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, False),
    ],
)
def test_the_standard_settings_decide(
    settings: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*tracing.ENDPOINTS, *tracing.PROTOCOLS, "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert tracing.is_wanted.__wrapped__() is expected


RUN = """
import sys, time, requests
{before}
from crew_service.local import running_service
scenario = {{'tasks': [{{'id': 'one', 'output': 'done'}}]}}
with running_service(scenario=scenario) as service:
    headers = {{'Authorization': f'Bearer {{service.token}}', 'traceparent': sys.argv[1]}}
    assert requests.post(service.url + '/kickoff', data='not JSON', headers=headers).status_code == 400
    key = requests.post(service.url + '/kickoff', json={{}}, headers=headers).json()['kickoff_id']
    while requests.get(f'{{service.url}}/status/{{key}}', headers=headers).json()['status'] != 'completed':
        time.sleep(0.05)
print({found})
"""


def printed_after_a_run(folder: Path, *, before: str, found: str) -> str:
    script = folder / "run.py"
    script.write_text(RUN.format(before=before, found=found))
    done = subprocess.run(
        [sys.executable, str(script), TRACEPARENT], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_with_traces_off_opentelemetry_is_not_imported(tmp_path: Path) -> None:
    imported = "{name for name in sys.modules if name.startswith('opentelemetry')}"
    before = f"import fastapi\nby_fastapi = {imported}"  # newer versions import OpenTelemetry's API
    assert printed_after_a_run(tmp_path, before=before, found=f"{imported} - by_fastapi") == "set()"


def test_fastapi_adds_nothing_to_process_wide_traces_and_logs(tmp_path: Path) -> None:
    before = """
from opentelemetry import _logs, trace
from opentelemetry.sdk import _logs as sdk_logs
from opentelemetry.sdk._logs import export as log_export
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans, logs = InMemorySpanExporter(), log_export.InMemoryLogRecordExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(spans))
_logs.set_logger_provider(sdk_logs.LoggerProvider())
_logs.get_logger_provider().add_log_record_processor(log_export.SimpleLogRecordProcessor(logs))
"""
    found = "[each.name for each in spans.get_finished_spans()], list(logs.get_finished_logs())"
    assert printed_after_a_run(tmp_path, before=before, found=found) == "[] []"


def test_a_missing_collector_delays_neither_executions_nor_shutdown(traced: Traced, collector: Collector) -> None:
    collector.close()
    service, client = traced(**collector.environment)
    execution = kicked_off(client)
    client.until(execution, "pending")
    answer(client, execution)
    client.until(execution, "completed")
    assert service.stop() == 0
