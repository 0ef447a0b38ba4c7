"""Returns every error as JSON with a `detail`, whichever part of the service raised it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crew_service.engine import machine
from crew_service.engine.files import FileGone
from crew_service.engine.health import DatabaseUnavailable

log = logging.getLogger(__name__)

RETRY_AFTER = {"Retry-After": "5"}


def add_to(app: FastAPI) -> None:
    app.add_exception_handler(DatabaseUnavailable, _unavailable)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ClientDisconnect, _left)
    for error in (OSError, RuntimeError, MemoryError):
        app.add_exception_handler(error, _of_machine)
    app.add_exception_handler(Exception, _unforeseen)


async def http_error(request: Request, error: Any) -> Response:
    if error.status_code == 405:
        allowed = _with_head(error.headers["Allow"])
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": allowed})
        error = HTTPException(405, error.detail, {"Allow": allowed})
    return await http_exception_handler(request, error)


def _with_head(allowed: str) -> str:
    """Add HEAD wherever GET is allowed; not all routes list it, and the order of the methods varies."""
    methods = set(allowed.split(", "))
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


async def _left(request: Request, error: Exception) -> Response:
    """Return a code for the metrics that differs from the service's own errors; nobody will read the response."""
    return Response(status_code=499)


async def _unavailable(request: Request, error: Any) -> JSONResponse:
    """Report an unknown outcome: a write may have succeeded before the database became unavailable."""
    return JSONResponse({"detail": str(error)}, 503, RETRY_AFTER)


async def _of_machine(request: Request, error: Exception) -> JSONResponse:
    if not machine.is_trouble(error):
        raise error
    return JSONResponse({"detail": machine.NONE_LEFT}, 503, RETRY_AFTER)


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    """Respond without details; `Answered` logs the error, which Starlette raises again."""
    return _internal()


def _internal() -> JSONResponse:
    return JSONResponse({"detail": "Internal server error"}, 500)


def _is_cut_off(error: BaseException | None) -> bool:
    """Return whether content cannot be read; Starlette wraps an error that it would have responded to."""
    return error is not None and (isinstance(error, DatabaseUnavailable | FileGone) or _is_cut_off(error.__cause__))


class Answered:
    """Responds to any error that nothing else has responded to, wherever it is raised.

    The server would close the connection: a client that is still sending, or has sent its next request, would see a
    reset. It still does so in the middle of a response, which the client must not take for complete.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_begun = is_complete = False

        async def note(message: Message) -> None:
            nonlocal is_begun, is_complete
            await send(message)
            is_begun = True
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, note)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also what a library in another language raises
            if is_begun and not is_complete:
                if not _is_cut_off(error):
                    raise
                log.error("a response ended early: its content can no longer be read")
                return  # the server closes the connection
            log.exception("a request failed")
            if not is_begun:
                await _internal()(scope, receive, send)
