"""One POST to a receiver of webhooks: its headers, its signature, and what counts as delivered.

Redirects are never followed, so that a credential reaches no one but the address it was given for.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Any

import aiohttp

from crew_service.storage.webhooks import without_credentials

STANDARD = "whsec_"  # secrets of https://www.standardwebhooks.com begin so


def session(timeout: float) -> aiohttp.ClientSession:
    """The connections are not limited here: the outbox bounds them. Cookies of one owner must not reach another."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout),
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def send(
    client: aiohttp.ClientSession,
    url: str,
    body: bytes,
    *,
    key: str,
    authentication: Any,
    secret: str | None,
    now: float,
) -> str | None:
    """Return None once the receiver took it, else what went wrong."""
    if authentication:  # it wins over a user and a password in the address: a request has one Authorization
        url = without_credentials(url)
    headers = {"Content-Type": "application/json", "Webhook-Id": key, **_proof(authentication)}
    try:
        headers |= signature(secret, body, int(now), key) if secret else {}
        async with client.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            return None if 200 <= answer.status < 300 else f"HTTP {answer.status}"
    except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, OSError) as error:
        return type(error).__name__


def answered(problem: str | None) -> bool:
    """Whether the receiver said anything at all."""
    return problem is None or problem.startswith("HTTP ")


def signature(secret: str, body: bytes, timestamp: int, key: str) -> dict[str, str]:
    """As live deployments sign, so that receivers check both in the same way; with `whsec_` by the standard as well."""
    signed = hmac.new(secret.encode(), b"%d.%b" % (timestamp, body), hashlib.sha256).hexdigest()
    as_live = {"X-CrewAI-Timestamp": str(timestamp), "X-CrewAI-Signature": f"sha256={signed}"}
    standard = standard_key(secret)
    if standard is None:
        return as_live
    by_standard = b64encode(hmac.digest(standard, b"%b.%d.%b" % (key.encode(), timestamp, body), "sha256")).decode()
    return {**as_live, "Webhook-Timestamp": str(timestamp), "Webhook-Signature": f"v1,{by_standard}"}


def standard_key(secret: str) -> bytes | None:
    """Return the key of a secret of Standard Webhooks, which begins with `whsec_`; None of any other.

    :raises ValueError: what follows is not base64
    """
    encoded = secret.removeprefix(STANDARD)
    if encoded == secret:
        return None
    key = b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    if not key:
        raise ValueError("the secret is empty")
    return key


def _proof(authentication: Any) -> dict[str, str]:
    """The Authorization that was asked for."""
    match authentication:
        case {"strategy": "bearer", "token": token}:
            return {"Authorization": f"Bearer {token}"}
        case {"strategy": "basic", "username": username, "password": password}:
            pair = f"{username}:{password}".encode()
            return {"Authorization": f"Basic {b64encode(pair).decode()}"}
    return {}
