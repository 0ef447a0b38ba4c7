"""Idempotency-Key: the same key and body get the same response, stored in the transaction that it protects."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.engine import Connection

from crew_service.engine.principals import Principal
from crew_service.storage import transactions
from crew_service.storage.tables import answers


class KeyReused(Exception):
    """The key was already used with a different body."""


@dataclass(frozen=True)
class IdempotencyKey:
    caller: str
    endpoint: str
    key: str
    fingerprint: str

    @classmethod
    def of(cls, caller: Principal, endpoint: str, key: str, body: dict[str, Any]) -> IdempotencyKey:
        canonical = json.dumps(body, sort_keys=True).encode()
        return cls(caller.key, endpoint, key, hashlib.sha256(canonical).hexdigest())

    def for_crew(self, crew: str) -> IdempotencyKey:
        """Return the key for one crew, because crews do not share keys."""
        return replace(self, caller=f"crew:{crew}/{self.caller}") if crew else self

    def earlier(self, connection: Connection) -> dict[str, Any] | None:
        """Return the earlier response to this request, if any. A concurrent duplicate waits for this transaction."""
        transactions.lock_name(connection, f"{self.caller}/{self.endpoint}/{self.key}")
        query = select(answers.c.fingerprint, answers.c.answer).where(
            answers.c.caller == self.caller,
            answers.c.endpoint == self.endpoint,
            answers.c.key == self.key,
        )
        row = connection.execute(query).one_or_none()
        if row is not None and row.fingerprint != self.fingerprint:
            raise KeyReused
        return row.answer if row else None

    def keep(self, connection: Connection, answer: dict[str, Any], *, execution_id: str | None, now: float) -> None:
        connection.execute(
            insert(answers).values(
                caller=self.caller,
                endpoint=self.endpoint,
                key=self.key,
                fingerprint=self.fingerprint,
                execution_id=execution_id,
                answer=answer,
                created_at=now,
            )
        )
