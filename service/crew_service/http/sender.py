"""Who has sent a request: the peer of its connection, or who a proxy that the operator has named says that it is.

Anybody can send `X-Forwarded-For`, and a proxy may hand it on as it came.
"""

from __future__ import annotations

import os
from typing import Any, cast

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

PROXIES = "FORWARDED_ALLOW_IPS"  # uvicorn's own variable: addresses with commas between them, or * for all
PEER = "crew_service.peer"
LOCAL = "127.0.0.1"  # a proxy there says by which scheme a request came, also where it is not named


class WithPeer:
    """Keeps the peer of the connection beside what the headers of proxies say."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), os.environ.get(PROXIES, LOCAL)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, PEER: scope.get("client")}, receive, send)


def sender_of(request: Request) -> str:
    """Return the address that has sent a request, as far as nobody can choose it."""
    proxies = os.environ.get(PROXIES)
    if proxies == "*":  # uvicorn takes the first address then, which is the sender's own word
        named = ", ".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
        if named:
            return named
    found = request.client if proxies else request.scope.get(PEER, request.client)
    return found[0] if found else ""
