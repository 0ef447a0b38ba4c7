"""Slows down token guessing at the page's login."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable

from crew_service.engine.container import Container
from crew_service.engine.principals import Principal
from crew_service.http.auth import DENIED

log = logging.getLogger(__name__)

TRIES, SECONDS = 10, 60.0  # failures from one address within this time before it must wait
ADDRESSES = 10_000  # remembered addresses; the oldest are forgotten first


class LoginRefused(Exception):
    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status, self.problem = status, problem


class LoginLimit:
    """Keeps failed attempts in memory: anybody can cause one, so it must not cost a database write."""

    def __init__(self) -> None:
        self._failures: dict[str, deque[float]] = {}

    def admit(self, address: str, token: str, crews: Iterable[Container]) -> list[tuple[Container, Principal]]:
        """Return the crews that a token gives access to, each with its caller; log the first caller.

        :raises LoginRefused: the token gives access to none, or too many attempts from this address have failed
        """
        if wait := self.wait(address):
            log.warning("login refused: too many failures from %s", address)
            raise LoginRefused(429, f"Too many failures; try again in {wait:.0f} seconds.")
        callers = [(crew, crew.tokens.caller(token)) for crew in crews]
        known = [(crew, caller) for crew, caller in callers if caller]
        if not known:
            self.failed(address)
            log.warning("login failed from %s", address)
            raise LoginRefused(401, DENIED)
        log.info("login by %s from %s", known[0][1].key, address)
        return known

    def wait(self, address: str) -> float:
        """Return the number of seconds until this address may try again; 0 if it may do so now."""
        failures = self._failures.get(address, deque())
        now = time.monotonic()
        while failures and now - failures[0] > SECONDS:
            failures.popleft()
        return SECONDS - (now - failures[0]) if len(failures) >= TRIES else 0.0

    def failed(self, address: str) -> None:
        failures = self._failures.pop(address, deque(maxlen=TRIES))
        failures.append(time.monotonic())
        self._failures[address] = failures
        if len(self._failures) > ADDRESSES:
            del self._failures[next(iter(self._failures))]
