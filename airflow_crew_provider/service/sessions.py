"""Browser sessions of the page: the cookie is a random key, never the token, and is worth nothing after a restart."""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass, field

from .callers import Caller

LIFE = 8 * 3600.0  # seconds
MOST = 1000  # sessions kept; the oldest give way


@dataclass(frozen=True)
class Session:
    caller: Caller
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    form_key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)  # against forged forms
    expires_at: float = field(default_factory=lambda: time.time() + LIFE)

    def made_form(self, form_key: str) -> bool:
        return hmac.compare_digest(self.form_key.encode(), form_key.encode())


class Sessions:
    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def open(self, caller: Caller) -> Session:
        session = Session(caller)
        while len(self._sessions) >= MOST:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[session.key] = session
        return session

    def find(self, key: str | None) -> Session | None:
        session = self._sessions.get(key or "")
        return session if session and session.expires_at > time.time() else None

    def close(self, session: Session) -> None:
        self._sessions.pop(session.key, None)
