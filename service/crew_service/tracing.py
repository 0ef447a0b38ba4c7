"""OpenTelemetry traces, if the standard settings enable them; otherwise, OpenTelemetry is not imported.

An execution stays in the trace of its kickoff: the kickoff's `traceparent` and `tracestate` are stored with it, and the
kickoff's span is the parent of each later one, even long after it has ended and on other machines. Names follow the
version of OpenTelemetry's semantic conventions in `SCHEMA`; other names begin with `crew.`.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from crew_service import __version__

log = logging.getLogger(__name__)

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
NAME = "airflow-crew-service"
EXPORTERS = ("otlp", "otlp_proto_http")
PROTOCOL = "http/protobuf"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
WITH_CONTENT = ("true", "span_only", "span_and_event")
# Version 00, and the beginning of later versions.
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}(-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(-.*)?")
TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
LAST_WORDS = 3.0  # seconds for an exiting process to send its last spans
KICKOFF, ANSWER = "kickoff", "answer"  # their spans are stored with an execution

Carrier = dict[str, str]
Stored = dict[str, Carrier]


@dataclass
class Span:
    """The facts about a span that are known when it ends."""

    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str | None = None  # only its type, because a message may contain model output


_open: ContextVar[Carrier | None] = ContextVar("carrier", default=None)


def carrier() -> Carrier | None:
    """Return `traceparent` and `tracestate` of the current work; None outside a trace."""
    return _open.get()


@cache
def is_wanted() -> bool:
    """Return whether the settings enable traces and all requirements are met."""
    setting = os.environ.get
    exporter = setting("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(setting, ENDPOINTS)) else "none")
    if exporter == "none" or setting("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if problem := _problem(exporter, next(filter(None, map(setting, PROTOCOLS)), PROTOCOL)):
        log.warning("no traces are sent: %s", problem)
    return not problem


def _problem(exporter: str, protocol: str) -> str | None:
    if exporter not in EXPORTERS:
        return f"OTEL_TRACES_EXPORTER must be one of {', '.join(EXPORTERS)}, none"
    if protocol != PROTOCOL:
        return f"OTEL_EXPORTER_OTLP_PROTOCOL must be {PROTOCOL}"
    try:
        import opentelemetry.exporter.otlp.proto.http  # noqa: F401
    except ImportError:
        return "OpenTelemetry is not installed: pip install 'airflow-crew-service[otel]'"
    return None


def received(headers: Iterable[tuple[bytes, bytes]]) -> Carrier | None:
    """Return the caller's context from a request's headers; None if it is not valid W3C Trace Context."""
    pairs = [(name, value.decode("latin-1").strip()) for name, value in headers if name.startswith(b"trace")]
    parents = [value for name, value in pairs if name == b"traceparent"]
    match = TRACEPARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if match is None or (parents[0].startswith("00") and match[2]):
        return None
    state = ",".join(value for name, value in pairs if name == b"tracestate")
    return {"traceparent": f"00{match[1]}", **({"tracestate": state} if TRACESTATE.fullmatch(state) else {})}


@contextmanager
def request(scope: Mapping[str, Any]) -> Iterator[Span | None]:
    """Trace a POST request; polls have no spans, because a wait of several days takes thousands of polls."""
    if scope["method"] != "POST":
        yield None
        return
    about = {"http.request.method": "POST", "url.path": scope["path"], "url.scheme": scope["scheme"]}
    with span("POST", received(scope["headers"]), kind="SERVER", **about) as one:
        yield one


def answered(one: Span, route: str, code: int) -> None:
    one.name = f"POST {route}"
    one.attributes |= {"http.route": route, "http.response.status_code": code}
    if code >= 500:
        one.error = str(code)


def kicked_off() -> Stored | None:
    """Return the trace context to store with a new execution."""
    here = carrier()
    return {KICKOFF: here} if here else None


def resumed(stored: Stored | None) -> Stored | None:
    """Return the trace context to store after a person's answer; the segments that follow link to it."""
    here = carrier()
    return {KICKOFF: here, **(stored or {}), ANSWER: here} if here else stored


@contextmanager
def segment(row: Any) -> Iterator[Span]:
    """Trace a segment of an execution and its time in the queue, both as children of the kickoff's span."""
    stored: Stored = row.trace or {}
    about = {"crew.execution.id": row.id, "crew.name": row.crew or None, "crew.segment": row.segment}
    parent = stored.get(KICKOFF)
    with span("queue", parent, times=(row.due_at, row.counted_at or row.due_at), **about):
        parent = parent or carrier()
    with span("segment", parent, link=stored.get(ANSWER), **about) as one:
        yield one


def task(task_id: str, agent: str, **about: Any) -> Any:
    """Trace a task of a crew that creates no spans of its own."""
    about |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent, "crew.task.id": task_id}
    return span(f"invoke_agent {agent}", carrier(), **about)


@contextmanager
def span(
    name: str,
    parent: Carrier | None,
    *,
    kind: str = "INTERNAL",
    link: Carrier | None = None,
    times: tuple[float, float] | None = None,
    **about: Any,
) -> Iterator[Span]:
    """Trace the work in this context, as a child of the span in `parent`.

    :param times: start and end in seconds since 1970, instead of those of the block
    """
    one = Span(name, about)
    end, here = _begun(one, parent, kind, link, times) if is_wanted() else (None, parent)
    token = _open.set(here)
    try:
        yield one
    except BaseException as error:
        one.error = type(error).__qualname__
        raise
    finally:
        _open.reset(token)
        if end:
            end()


def _begun(
    one: Span, parent: Carrier | None, kind: str, link: Carrier | None, times: tuple[float, float] | None
) -> tuple[Callable[[], None], Carrier]:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    propagator = TraceContextTextMapPropagator()
    begin, end = [round(each * 1e9) for each in times] if times else (None, None)
    opened = (
        _provider()
        .get_tracer(NAME, __version__, SCHEMA)
        .start_span(
            one.name,
            context=propagator.extract(parent or {}),
            kind=trace.SpanKind[kind],
            links=[trace.Link(remote_span(link).get_span_context())] if link else (),
            start_time=begin,
        )
    )
    here: Carrier = {}
    propagator.inject(here, trace.set_span_in_context(opened))

    def finish() -> None:
        opened.update_name(one.name)
        opened.set_attributes({name: value for name, value in one.attributes.items() if value is not None})
        if one.error:
            opened.set_attribute("error.type", one.error)
            opened.set_status(trace.StatusCode.ERROR)
        opened.end(end)

    return finish, here


def remote_span(of: Carrier) -> Any:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return trace.get_current_span(TraceContextTextMapPropagator().extract(of))


@cache
def _provider() -> Any:
    """Return a separate provider, since other packages in this process may have their own."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def start() -> None:
    """Log missing requirements, and import OpenTelemetry before the first request needs it."""
    if is_wanted():
        _provider()


def stop() -> None:
    """Send the remaining spans, if a collector accepts them in time."""
    if _provider.cache_info().currsize:
        sending = threading.Thread(target=_provider().shutdown, daemon=True)
        _provider.cache_clear()
        sending.start()
        sending.join(LAST_WORDS)


def resource() -> Any:
    """Return the resource from `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, with a default name."""
    from opentelemetry.sdk.resources import Resource

    base = Resource.create()
    is_named = not str(base.attributes["service.name"]).startswith("unknown_service")
    return base if is_named else base.merge(Resource({"service.name": NAME}))


def shows_content() -> bool:
    """Return whether to capture prompts and outputs; OpenTelemetry's instrumentations use the same setting."""
    return os.environ.get(CONTENT, "").lower() in WITH_CONTENT
