"""Undelivered webhooks: kept as long as their execution, listed, and resent on request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sqlalchemy.engine import Row

from crew_service.engine.principals import Principal
from crew_service.storage import webhooks
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database

log = logging.getLogger(__name__)

MOST = 100_000  # resent at once


def shown_url(letter: Row[Any]) -> str:
    """Return the URL to display; for a flow webhook, which belongs to the organization, only its scheme and host."""
    return webhooks.receiver(str(letter.url)) if letter.kind == webhooks.FLOW else str(letter.url)


class DeadLetters:
    """Undelivered webhooks of one crew, or of all crews.

    :param posted: called when there is something to deliver
    """

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
        """Put a webhook back in its queue; return False if the caller has none with that key."""
        with self._database.writing() as connection:
            letters = webhooks.letters(connection, owner=caller.user, crew=self._crew, key=key, limit=1)
            sent = bool(letters) and webhooks.resend(connection, key, now=self._database.now())
        if sent:
            log.info("webhook resent by %s", caller.key, extra={"execution_id": letters[0].execution_id})
            self._posted()
        return sent

    def resend_all(self, caller: Principal) -> int:
        """Resend all, oldest first, so that an execution's webhooks stay in order; return how many were resent."""
        letters = self.latest(caller, MOST)
        return sum(self._tried(caller, letter) for letter in reversed(letters))

    def _tried(self, caller: Principal, letter: Row[Any]) -> bool:
        """Resend one of several; if it cannot be resent, keep it and do not block the others."""
        try:
            return self.resend(caller, letter.key)
        except DatabaseUnavailable:
            raise
        except Exception:
            log.exception("webhook %s cannot be resent", letter.key, extra={"execution_id": letter.execution_id})
            return False
