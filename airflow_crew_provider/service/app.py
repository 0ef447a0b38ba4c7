"""Builds the application: the endpoints behind the gate, and every error as JSON with a `detail`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from . import documentation, manual
from .api import Api, key_reused
from .assembly import Service
from .crews import Crew
from .desk import Refused
from .gate import Gate
from .metrics import Measured
from .once import KeyReused
from .page import Page
from .settings import Settings

log = logging.getLogger(__name__)


def create_app(settings: Settings, crew: Crew) -> FastAPI:
    service = Service(settings, crew)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await run_in_threadpool(service.stop)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_middleware(Gate, tokens=service.tokens)
    app.add_middleware(Measured, metrics=service.metrics)
    api = Api(service)
    api.add_to(app)
    Page(service).add_to(app)
    app.add_exception_handler(Refused, api.refused)
    app.add_exception_handler(KeyReused, key_reused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unforeseen)
    manual.add_to(app)
    documentation.install(app, service.dialect, crew)
    return app


async def _http_error(request: Request, error: Any) -> Response:
    if error.status_code == 405:
        allowed = error.headers["Allow"].replace("GET", "GET, HEAD")
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": allowed})
        error = HTTPException(405, error.detail, {"Allow": allowed})
    return await http_exception_handler(request, error)


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    """The server logs the error itself; the caller learns nothing of the inside."""
    return JSONResponse({"detail": "Internal server error"}, 500)
