"""What CrewAI's console sends when a Flow asks a person: the question in both shapes, and its signature."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any
from uuid import uuid4

from airflow_crew_provider.models import Json

SECRET = "signing-secret-of-the-console"
TOKEN = "response-token-that-nobody-sees"
CREW = "http://crew.example.com:8300"


def question(**fields: Any) -> Json:
    id_ = str(uuid4())
    flow_id = str(uuid4())
    return {
        "event_type": "new_request",
        "id": id_,
        "status": "pending",
        "flow_id": flow_id,
        "method_name": "check_briefing",
        "message": "May this go out?",
        "output": "Draft 1",
        "emit": ["publish", "rework"],
        "callback_url": f"{CREW}/human_feedback_requests/{id_}/respond?token={TOKEN}",
        "response_token": TOKEN,
        "flow_execution_id": str(uuid4()),
        "deployment_id": 7,
        **fields,
    }


def nested(body: Json) -> Json:
    about = {"event_type": body["event_type"], "id": "event-1"}
    request = {name: value for name, value in body.items() if name not in ("event_type", "deployment_id")}
    return {"event": about, "request": request, "deployment": {"id": body["deployment_id"]}}


def signed(raw: bytes, at: float, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), f"{int(at)}.".encode() + raw, hashlib.sha256).hexdigest()
