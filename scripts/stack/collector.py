"""An OpenTelemetry collector on loopback, which receives spans over OTLP/HTTP as protobuf and keeps them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span; its ids are lower-case hexadecimal, and its times are seconds since 1970."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    begin: float
    end: float
    is_error: bool
    attributes: dict[str, Any]
    links: tuple[str, ...]  # span ids


class Collector:
    """A running collector; `raw` holds the unmodified body of each request."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.raw: list[bytes] = []
        self.paths: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *parts: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that make a process send its spans here, without much delay."""
        exporter = {"OTEL_TRACES_EXPORTER": "otlp_proto_http"}  # for Airflow, `otlp` is gRPC
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100", **exporter}

    def named(self, name: str) -> list[ReceivedSpan]:
        """Return the spans with that name in the order in which they began."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.begin)

    def parent(self, span: ReceivedSpan) -> ReceivedSpan | None:
        return next((other for other in self.spans if other.span_id == span.parent_id), None)

    def lineage(self, span: ReceivedSpan) -> list[str]:
        """Return the names from the span up to the first one whose parent was not received."""
        parent = self.parent(span)
        return [span.name, *(self.lineage(parent) if parent else ())]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        self.raw.append(body)
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(sent.resource.attributes).get("service.name", "")
            self.spans.extend(_span(each, service) for scope in sent.scope_spans for each in scope.spans)


def _span(sent: Any, service: str) -> ReceivedSpan:
    return ReceivedSpan(
        name=sent.name,
        service=service,
        trace_id=sent.trace_id.hex(),
        span_id=sent.span_id.hex(),
        parent_id=sent.parent_span_id.hex(),
        kind=sent.kind,
        begin=sent.start_time_unix_nano / 1e9,
        end=sent.end_time_unix_nano / 1e9,
        is_error=sent.status.code == sent.status.STATUS_CODE_ERROR,
        attributes=_attributes(sent.attributes),
        links=tuple(link.span_id.hex() for link in sent.links),
    )


def _attributes(sent: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in sent}


def _value(sent: Any) -> Any:
    kind = sent.WhichOneof("value")
    return [_value(each) for each in sent.array_value.values] if kind == "array_value" else kind and getattr(sent, kind)
