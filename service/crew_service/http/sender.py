"""The sender of a request: the connection's peer, or the address reported by a proxy that the operator trusts.

Anybody can send `X-Forwarded-For`, and a proxy may pass it on unchanged.
"""

from __future__ import annotations

import os
from typing import Any, cast

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

PROXIES = "FORWARDED_ALLOW_IPS"  # uvicorn's own variable: addresses separated by commas, or * for all
PEER = "crew_service.peer"
LOCAL = "127.0.0.1"  # trusted to report a request's scheme if no proxies are listed


class WithPeer:
    """Keeps the connection's peer in addition to the information from proxy headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), os.environ.get(PROXIES, LOCAL)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, PEER: scope.get("client")}, receive, send)


def sender_of(request: Request) -> str:
    """Return the address that sent a request, from information that the sender cannot forge."""
    proxies = os.environ.get(PROXIES)
    if proxies == "*":  # uvicorn then uses the first address, which the sender can choose
        named = ", ".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
        if named:
            return named
    peer = request.client if proxies else request.scope.get(PEER, request.client)
    return peer[0] if peer else ""
