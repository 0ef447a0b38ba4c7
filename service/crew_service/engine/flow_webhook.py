"""The webhook that announces a Flow's question: signed, with an address that accepts one answer.

It goes through the outbox like every webhook. The token for the answer is derived when the webhook is sent, and is
never stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import Row

from crew_service.engine import paths
from crew_service.engine.background import Background
from crew_service.engine.questions import FlowQuestion, question_in
from crew_service.storage import integrity, questions, webhooks
from crew_service.storage.database import Database
from crew_service.times import iso

log = logging.getLogger(__name__)

PAUSE = 0.25  # seconds between polls for questions


@dataclass(frozen=True)
class FlowWebhook:
    url: str
    secret: str = field(repr=False)
    base_url: str  # public URL of this service

    def response_token(self, question_id: str) -> str:
        """Return the token for answering this question; it is derived, so it need not be stored."""
        return hmac.new(self.secret.encode(), f"answer:{question_id}".encode(), hashlib.sha256).hexdigest()

    def is_token(self, question_id: str, token: str) -> bool:
        return hmac.compare_digest(self.response_token(question_id).encode(), token.encode("utf-8", "replace"))

    def body(self, question_id: str, row: Row[Any]) -> dict[str, Any]:
        """Return the body to store; `with_answer` completes it."""
        question = question_in(row.gate)
        if not isinstance(question, FlowQuestion):
            raise ValueError("it is not a Flow's question")
        return {
            "event_type": "new_request",
            "id": question_id,
            "status": "pending",
            "flow_id": row.id,
            "flow_execution_id": row.id,
            "kickoff_id": row.kickoff_id,
            "method_name": question.task_id,
            "message": question.question,
            "output": question.output,
            "emit": question.outcomes or None,
            **question.details,
            "created_at": iso(row.updated_at),
            "callback_url": f"{paths.of_crew(row.crew)}/human_feedback_requests/{question_id}/respond",
            "response_token": None,
            "deployment_id": None,
            "deployment_name": question.agent,
            "assigned_to": None,
            "sla_target_minutes": None,
            "routing": {"effective_responders": [], "enforce_routing_rules": False},
        }

    def with_answer(self, body: str) -> str:
        """Add the address for the answer to a stored body."""
        message = json.loads(body)
        token = self.response_token(message["id"])
        address = f"{self.base_url}{message['callback_url']}?token={token}"
        return json.dumps({**message, "callback_url": address, "response_token": token})


class FlowWebhooks:
    """Puts each Flow question in this database into the outbox once, whichever process asked it."""

    def __init__(self, database: Database, webhook: FlowWebhook, posted: Callable[[], None]) -> None:
        self._database = database
        self._webhook = webhook
        self._posted = posted
        self.loop = Background("flow-webhooks", self._announce, pause=PAUSE)

    def start(self) -> None:
        self.loop.start()

    def stop(self) -> None:
        self.loop.stop()

    def _announce(self) -> None:
        with self._database.reading() as connection:
            if not questions.any_unannounced(connection):
                return
        now = self._database.now()
        with self._database.writing() as connection:
            for question_id, row in questions.claim_unannounced(connection, now=now):
                body = self._body(question_id, row)
                if body is None:
                    integrity.end_unreadable(connection, row.id, now=now)
                    continue
                webhooks.post(
                    connection, row.id, webhooks.FLOW, {"url": self._webhook.url}, body, now=now, key=question_id
                )
        self._posted()

    def _body(self, question_id: str, row: Row[Any]) -> dict[str, Any] | None:
        """Return the body for a question; None if the question cannot be read, so that others are still announced."""
        try:
            return self._webhook.body(question_id, row)
        except Exception:
            log.exception("a question cannot be read, so its execution was ended", extra={"execution_id": row.id})
            return None
