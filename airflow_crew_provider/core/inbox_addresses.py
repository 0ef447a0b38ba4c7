"""Registrations, by which the inbox authenticates webhooks; our side keeps only their hashes. Pure.

A registration belongs to one kickoff or resume. Its bearer token lets the question to a person in; its progress
URLs, which the service calls without authentication, hold a capability that never ends a wait for a person.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass
from secrets import token_urlsafe
from typing import Any

from airflow_crew_provider.models import HumanInputWebhook, Json, Webhooks

WORD = "inbox"  # what operators take as `webhooks`

Secret = Callable[[str], str]


@dataclass(frozen=True)
class Registration:
    """What our side keeps of the addresses that were given to the service.

    :param id: unguessable, part of each address
    :param human_input: SHA-256 of the bearer token
    :param progress: SHA-256 of the capability in the progress URLs
    :param execution_id: the root execution of a resume; None for a kickoff, whose id is not known yet
    :param at: when it was made, in epoch seconds
    """

    id: str
    human_input: str
    progress: str
    execution_id: str | None
    at: float

    def as_dict(self) -> Json:
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def of(cls, value: Any) -> Registration | None:
        """Read what was stored; None if it is not a registration."""
        try:
            return cls(**value)
        except TypeError:
            return None


def matches(given: str, kept: str) -> bool:
    """Whether a secret is the one whose hash was kept, in constant time."""
    return hmac.compare_digest(digest(given), kept)


def digest(secret: str) -> str:
    """Hash a secret of full entropy."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def fresh(purpose: str) -> str:
    """Make a secret at random."""
    return token_urlsafe(32)


def repeatable(token: str, idempotency_key: str) -> Secret:
    """Return secrets that come out the same when a request is repeated with its key, as its body must.

    Neither the connection's token nor the key, which is random, is enough to find them.
    """

    def secret(purpose: str) -> str:
        made = hmac.digest(token.encode(), f"{idempotency_key}:{purpose}".encode(), "sha256")
        return urlsafe_b64encode(made).decode().rstrip("=")

    return secret


def secrets_of(webhooks: Webhooks) -> tuple[str, str]:
    """Return what must not show in a log of these webhooks: the token, and the capability."""
    assert webhooks.human_input
    assert webhooks.human_input.token
    assert webhooks.task
    return webhooks.human_input.token, webhooks.task.split("/")[-2]


def registered(inbox_url: str, execution_id: str | None, secret: Secret = fresh) -> tuple[Registration, Webhooks]:
    """Return what our side keeps, and the webhooks to send."""
    id_, token, capability = (secret(purpose) for purpose in ("id", "human_input", "progress"))
    base = inbox_url.rstrip("/")
    progress_url = f"{base}/progress/{id_}/{capability}"
    kept = Registration(id_, digest(token), digest(capability), execution_id, time.time())
    human_input = HumanInputWebhook(f"{base}/human-input/{id_}", token=token)
    return kept, Webhooks(f"{progress_url}/task", f"{progress_url}/step", f"{progress_url}/crew", human_input)
