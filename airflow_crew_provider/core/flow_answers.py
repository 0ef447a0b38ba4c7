"""The calls that answer a Flow's question: by the address that came with it, or by the Flow's id. No I/O."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlsplit

from airflow_crew_provider.core.endpoints import Call, posted
from airflow_crew_provider.core.responses import HttpResponse, Mask
from airflow_crew_provider.core.review import ReviewAnswer
from airflow_crew_provider.models import Json, Resumed

ALREADY = "already_responded"


def respond(callback_url: str, answer: ReviewAnswer) -> Call[Resumed]:
    """Answer by a callback URL; its path holds a token, so no error shows it."""
    parts = urlsplit(callback_url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    shown = f"to the callback of request {answer.crew_task_id}"
    return Call("POST", shown, partial(_read, answer.execution_id), _body(answer), target=target, also=(409,))


def resume_feedback(flow_id: str, answer: ReviewAnswer) -> Call[Resumed]:
    """``POST /resume_feedback``: answer what the Flow asks now."""
    body = {"flow_id": flow_id, **_body(answer)}
    return Call("POST", "/resume_feedback", partial(_read, answer.execution_id), body, also=(409,))


def _body(answer: ReviewAnswer) -> Json:
    chosen = {"outcome": answer.outcome} if answer.outcome else {}
    return {"feedback": answer.human_feedback, "source": "airflow", **chosen}


def _read(execution_id: str, answer: HttpResponse, mask: Mask) -> Resumed:
    body = posted(answer, "The answer to the Flow", mask)
    if answer.status != 409:
        return Resumed(execution_id, "accepted")
    request = body.get("request")
    fields = {**body, **request} if isinstance(request, dict) else body
    who = _name(fields.get("responded_by")) or "somebody else"
    when = fields.get("responded_at")
    at = f" at {when}" if isinstance(when, str) and when else ""
    return Resumed(execution_id, ALREADY, mask(f"the question was answered by {who}{at} already"))


def _name(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name") or value.get("email") or value.get("id")
    return str(value)[:200] if value else ""
