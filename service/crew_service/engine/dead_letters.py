"""Undelivered webhooks: kept as long as their execution, listed, and sent again on request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sqlalchemy.engine import Row

from crew_service.engine.principals import Principal
from crew_service.storage import webhooks
from crew_service.storage.database import Database

log = logging.getLogger(__name__)

MOST = 100_000  # sent again in one go


def shown_url(letter: Row[Any]) -> str:
    """Return the address of a dead letter for whoever may see its execution: a flow webhook's is the organization's."""
    return webhooks.receiver(letter.url) if letter.kind == webhooks.FLOW else str(letter.url)


class DeadLetters:
    """`posted`: something is to be delivered; `crew`: only that one's, all without."""

    def __init__(
        self, database: Database, *, crew: str | None = None, posted: Callable[[], None] = lambda: None
    ) -> None:
        self._database = database
        self._crew = crew
        self._posted = posted

    def latest(self, caller: Principal, limit: int, execution_id: str | None = None) -> list[Row[Any]]:
        with self._database.reading() as connection:
            return webhooks.letters(
                connection, owner=caller.user, crew=self._crew, execution_id=execution_id, limit=limit
            )

    def resend(self, caller: Principal, key: str) -> bool:
        """Put it back into its queue; False when this caller has none of that key."""
        with self._database.writing() as connection:
            found = webhooks.letters(connection, owner=caller.user, crew=self._crew, key=key, limit=1)
            sent = bool(found) and webhooks.resend(connection, key, now=self._database.now())
        if sent:
            log.info("webhook sent again by %s", caller.key, extra={"execution_id": found[0].execution_id})
            self._posted()
        return sent

    def resend_all(self, caller: Principal) -> int:
        """Send the oldest first, so that those of one execution leave in their order again."""
        letters = self.latest(caller, MOST)
        return sum(self.resend(caller, letter.key) for letter in reversed(letters))
