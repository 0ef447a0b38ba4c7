"""CrewAI's own spans of agents, tasks and model calls, below the span of the segment; without what was said.

CrewAI writes prompts, answers, inputs and errors into its spans. Only what is known to be a name, an id or a number
leaves the process, unless the setting for content asks for all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Status, StatusCode

from crew_service import tracing
from crew_service.crewai import internals
from crew_service.engine.printed import masked, secrets_of

# Texts that the author of a crew chose, or that CrewAI made: no word of a person or of a model.
NAMES = frozenset(
    {
        *("crewai.agent.key", "crewai.agent.role", "crewai.crew.id", "crewai.crew.key", "crewai.crew.name"),
        *("crewai.crew.process", "crewai.event_name", "crewai.execution_uuid", "crewai.flow.id", "crewai.flow.name"),
        *("crewai.guardrail.type", "crewai.human_feedback.method_name", "crewai.llm.call_id", "crewai.llm.call_type"),
        *("crewai.mcp.server_name", "crewai.mcp.tool_name", "crewai.mcp.transport_type", "crewai.method.name"),
        *("crewai.skill.name", "crewai.task.id", "crewai.task.key", "crewai.task.name", "crewai.task.output_format"),
        *("error.type", "event_id", "parent_event_id", "gen_ai.agent.id", "gen_ai.agent.name"),
        *("gen_ai.conversation.id", "gen_ai.operation.name", "gen_ai.output.type", "gen_ai.provider.name"),
        *("gen_ai.request.model", "gen_ai.response.finish_reasons", "gen_ai.response.id", "gen_ai.response.model"),
        *("gen_ai.tool.name", "gen_ai.tool.type", "gen_ai.workflow.name"),
    }
)
ROLES: dict[str, str] = {}  # the roles that inputs stand in: as they were declared


@contextmanager
def below(parent: tracing.Carrier, execution_id: str) -> Iterator[SpanExporter | None]:
    """Send CrewAI's spans of what is run meanwhile as part of the span that `parent` names; those of CrewAI 1.15.22."""
    session = _session()
    if session is None:
        yield None
        return
    internals.watch_roles(ROLES.__setitem__)
    exporter = SpanExporter()
    with session(execution_id, "crew", [exporter], resource=tracing.resource()) as context:
        context.root_span = tracing.remote_span(parent)
        yield exporter


def _session() -> Any:
    try:
        from crewai.telemetry.tracing import telemetry_session
    except ImportError:  # an older CrewAI
        return None
    return telemetry_session


class SpanExporter(OTLPSpanExporter):
    is_paused = False  # a person is asked: what is open then has not failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        keeps = tracing.shows_content()
        told = [_paused(span) if self.is_paused and _was_open(span) else span for span in spans]
        return super().export([_without_secrets(span) if keeps else _without_content(span) for span in told])


def _was_open(span: ReadableSpan) -> bool:
    """Whether CrewAI has only ended it with the session, as an error; a failure has its type."""
    return span.status.status_code is StatusCode.ERROR and "error.type" not in (span.attributes or {})


def _paused(span: ReadableSpan) -> ReadableSpan:
    return _changed(span, {**(span.attributes or {}), "crew.outcome": "pending"}, Status(), span.events)


def _without_content(span: ReadableSpan) -> ReadableSpan:
    kept = {name: value for name, value in (span.attributes or {}).items() if name in NAMES or _is_number(value)}
    kept |= {name: ROLES[value] for name, value in kept.items() if isinstance(value, str) and value in ROLES}
    return _changed(span, kept, Status(span.status.status_code), ())


def _without_secrets(span: ReadableSpan) -> ReadableSpan:
    """Mask the texts of exceptions; what was asked and answered stays as it is."""
    secrets = secrets_of(os.environ)
    status = Status(span.status.status_code, masked(span.status.description or "", secrets) or None)
    events = [Event(each.name, _masked_values(each.attributes, secrets), each.timestamp) for each in span.events]
    return _changed(span, dict(span.attributes or {}), status, events)


def _masked_values(values: Mapping[str, Any] | None, secrets: list[str]) -> dict[str, Any]:
    return {n: masked(value, secrets) if isinstance(value, str) else value for n, value in (values or {}).items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _changed(span: ReadableSpan, attributes: dict[str, Any], status: Status, events: Sequence[Event]) -> ReadableSpan:
    return ReadableSpan(
        span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=attributes,
        events=events,
        links=span.links,
        kind=span.kind,
        status=status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
