"""The webhook that a Flow's question is announced with: signed, sent once, with an address that takes one answer."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import requests
from sqlalchemy.engine import Row

from crew_service.engine import paths, sending
from crew_service.engine.background import Background
from crew_service.storage import questions
from crew_service.storage.database import Database

log = logging.getLogger(__name__)

PAUSE = 0.25  # seconds between two polls for questions
TIMEOUT = 30.0  # seconds for the receiver to answer
AT_ONCE = 8


@dataclass(frozen=True)
class FlowWebhook:
    url: str
    secret: str = field(repr=False)
    base_url: str  # of this service, as the receiver reaches it

    def response_token(self, question_id: str) -> str:
        """Return the token that answers this question; it is derived, so that it is stored nowhere."""
        return hmac.new(self.secret.encode(), f"answer:{question_id}".encode(), hashlib.sha256).hexdigest()

    def is_token(self, question_id: str, token: str) -> bool:
        return hmac.compare_digest(self.response_token(question_id).encode(), token.encode("utf-8", "replace"))

    def headers(self, question_id: str, raw: bytes, *, now: float) -> dict[str, str]:
        signed = sending.signature(self.secret, raw, int(now), question_id)
        return {"Content-Type": "application/json", "Webhook-Id": question_id, **signed}

    def body(self, question_id: str, row: Row[Any]) -> dict[str, Any]:
        gate: Mapping[str, Any] = row.gate
        token = self.response_token(question_id)
        address = (
            f"{self.base_url}{paths.of_crew(row.crew)}/human_feedback_requests/{question_id}/respond?token={token}"
        )
        return {
            "event_type": "new_request",
            "id": question_id,
            "status": "pending",
            "flow_id": row.id,
            "flow_execution_id": row.id,
            "kickoff_id": row.kickoff_id,
            "method_name": gate["task_id"],
            "message": gate["question"],
            "output": gate["output"],
            "emit": gate["outcomes"] or None,
            **gate["details"],
            "created_at": datetime.fromtimestamp(row.updated_at, timezone.utc).isoformat(),
            "callback_url": address,
            "response_token": token,
            "deployment_id": None,
            "deployment_name": gate["agent"],
            "assigned_to": None,
            "sla_target_minutes": None,
            "routing": {"effective_responders": [], "enforce_routing_rules": False},
        }


class FlowWebhooks:
    """Announces the questions of every Flow of this database, one POST each."""

    def __init__(self, database: Database, webhook: FlowWebhook) -> None:
        self._database = database
        self._webhook = webhook
        self._pool = ThreadPoolExecutor(AT_ONCE, "flow-webhook")
        self._loop = Background("flow-webhooks", self._announce, pause=PAUSE)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _announce(self) -> None:
        with self._database.reading() as connection:
            if not questions.any_unannounced(connection):
                return
        with self._database.writing() as connection:
            found = questions.claim_unannounced(connection, now=self._database.now())
        for question_id, row in found:
            self._pool.submit(self._send, question_id, row)

    def _send(self, question_id: str, row: Row[Any]) -> None:
        raw = json.dumps(self._webhook.body(question_id, row)).encode()
        headers = self._webhook.headers(question_id, raw, now=self._database.now())
        labels = {"execution_id": row.id, "webhook": "flow"}
        try:
            answer = requests.post(self._webhook.url, raw, headers=headers, timeout=TIMEOUT, allow_redirects=False)
            problem = None if answer.ok and not answer.is_redirect else f"HTTP {answer.status_code}"
        except requests.RequestException as error:
            problem = type(error).__name__
        if problem:
            log.warning("flow webhook not delivered: %s; it is not sent again", problem, extra=labels)
        else:
            log.info("flow webhook delivered", extra=labels)
