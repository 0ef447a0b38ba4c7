"""Before anything of a request is read: who calls? And HEAD is answered as GET is, without the body."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .callers import Tokens

OPEN = frozenset({"/healthz", "/openapi.json", "/docs"})
PAGE = frozenset({"/", "/login", "/logout", "/review"})  # for browsers; these ask for a session themselves
WITHOUT_HEADER = OPEN | PAGE
DENIED = "Invalid or missing authentication credentials"


class Gate:
    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller = self._tokens.of_header(Headers(scope=scope).get("authorization", ""))
        if caller is None and scope["path"] not in WITHOUT_HEADER:
            denied = JSONResponse({"detail": DENIED}, 401, {"WWW-Authenticate": "Bearer"})
            await denied(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        if scope["method"] == "HEAD":
            scope["method"] = "GET"
        await self._app(scope, receive, send)
