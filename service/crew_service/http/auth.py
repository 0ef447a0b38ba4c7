"""Identifies the caller before a request's body is read. HEAD is answered like GET, but without a body."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from crew_service.engine.principals import Tokens

DENIED = "Invalid or missing authentication credentials"


def denial(detail: str = DENIED) -> JSONResponse:
    return JSONResponse({"detail": detail}, 401, {"WWW-Authenticate": "Bearer"})


class Authentication:
    def __init__(self, app: ASGIApp, tokens: Tokens, open_paths: frozenset[str], without_header: str) -> None:
        self._app = app
        self._tokens = tokens
        self._without_header = without_header
        self._open_paths = frozenset(path for path in open_paths if "{" not in path)
        self._open_folders = tuple(path.partition("{")[0] for path in open_paths if "{" in path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = Headers(scope=scope).get("authorization")
        caller = self._tokens.of_header(header or "")
        denied = self._without_header if header is None else DENIED
        if caller is None and not self._is_open(_path(scope)):
            await denial(denied)(scope, receive, send)
            return
        scope.setdefault("state", {}).update(caller=caller, denied=denied)
        if scope["method"] == "HEAD":
            scope["method"] = "GET"
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or path.startswith(self._open_folders)


def _path(scope: Scope) -> str:
    """Return the path below the crew's path."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
