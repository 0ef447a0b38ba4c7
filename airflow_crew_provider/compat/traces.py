"""Airflow's traces: a task's request is a child of the task's span, and its headers pass the trace on to the service.

This needs `[traces] otel_on` and a span that Airflow has opened for the task, as 3.3 and newer do. The headers are
added to the request last: no record or fingerprint contains them, and a retry, which has a different span, still sends
the same request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import conf

from airflow_crew_provider.api.addresses import DEFAULT_PORTS
from airflow_crew_provider.api.endpoints import Call
from airflow_crew_provider.exceptions import CrewError

NAME = "airflow-crew-provider"
SCHEMA = "https://opentelemetry.io/schemas/1.44.0"  # the semantic conventions that the names follow
Traced = tuple[dict[str, str], Callable[[int], None]]


@contextmanager
def of_call(call: Call[Any], base_url: str) -> Iterator[Traced]:
    """Yield the span's headers, empty without a trace, and a function that records the status code.

    Polls have no span, because a wait that takes days sends thousands of them.
    """
    if call.polled is not None or not conf.getboolean("traces", "otel_on", fallback=False):
        yield {}, _ignored
        return
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not trace.get_current_span().get_span_context().is_valid:
        yield {}, _ignored
        return
    tracer, name = trace.get_tracer(NAME, schema_url=SCHEMA), f"{call.method} {_route(call.path)}"
    # An error's text may quote the service, so neither it nor a description is recorded.
    with tracer.start_as_current_span(
        name, kind=trace.SpanKind.CLIENT, record_exception=False, set_status_on_exception=False
    ) as span:
        span.set_attributes(_about(call, base_url))
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        try:
            yield headers, lambda code: span.set_attribute("http.response.status_code", code)
        except CrewError as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.StatusCode.ERROR)
            raise


def _ignored(code: int) -> None:
    """Trace nothing."""


def _route(path: str) -> str:
    """Return the path's first part, which names the endpoint; ids follow it."""
    return "/" + urlsplit(path).path.strip("/").partition("/")[0]


def _about(call: Call[Any], base_url: str) -> dict[str, str | int]:
    place = urlsplit(base_url)
    port = place.port or DEFAULT_PORTS[place.scheme]
    about: dict[str, str | int] = {"http.request.method": call.method, "url.template": _route(call.path)}
    return {**about, "server.address": place.hostname or "", "server.port": port}
