"""Browser sessions for the page, shared by all processes of the service.

The cookie is a random key, never the token. Only a hash bound to the token is stored, so a session ends with its token,
and a copy of the database does not give access to any session.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from crew_service.engine.principals import Principal, Tokens
from crew_service.storage import browser_sessions
from crew_service.storage.database import Database

LIFE = 8 * 3600.0  # seconds


@dataclass(frozen=True)
class BrowserSession:
    caller: Principal
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    form_key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)  # prevents forged forms

    def made_form(self, form_key: str) -> bool:
        return hmac.compare_digest(self.form_key.encode(), form_key.encode())


class BrowserSessions:
    """One crew's sessions."""

    def __init__(self, database: Database, tokens: Tokens, crew: str) -> None:
        self._database = database
        self._tokens = tokens
        self._crew = crew

    def open(self, caller: Principal) -> BrowserSession:
        session = BrowserSession(caller)
        self.keep(session)
        return session

    def keep(self, session: BrowserSession) -> None:
        caller, now = session.caller, self._database.now()
        with self._database.writing() as connection:
            browser_sessions.add(
                connection,
                now=now,
                key_hash=self._hashes(session.key, caller)[0],
                crew=self._crew,
                owner=caller.user,
                form_key=session.form_key,
                expires_at=now + LIFE,
            )

    def find(self, key: str | None) -> BrowserSession | None:
        if not key:
            return None
        with self._database.reading() as connection:
            row = browser_sessions.find(connection, self._hashes(key), self._crew, now=self._database.now())
        holders = (holder for _, holder in self._tokens.digests if row and holder.user == row.owner)
        return next((BrowserSession(holder, key, row.form_key) for holder in holders if row), None)

    def close(self, session: BrowserSession) -> None:
        with self._database.writing() as connection:
            browser_sessions.remove(connection, self._hashes(session.key))

    def _hashes(self, key: str, caller: Principal | None = None) -> list[str]:
        """Return the stored hashes of the key: one for each of the caller's tokens, or for each valid token."""
        known = [digest for digest, holder in self._tokens.digests if caller in (None, holder)]
        return [hmac.new(digest, key.encode("utf-8", "replace"), hashlib.sha256).hexdigest() for digest in known]
