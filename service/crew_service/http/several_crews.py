"""What is at the root where several crews are served, each below `/crews/<name>`."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from crew_service.engine.container import Process
from crew_service.http import errors
from crew_service.http.api import health_answer


def create_app(process: Process) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    async def healthz() -> JSONResponse:
        return health_answer(await run_in_threadpool(process.health.problem))

    async def livez() -> JSONResponse:
        return health_answer(process.dead())

    async def readyz() -> JSONResponse:
        return health_answer(await run_in_threadpool(process.unready))

    app.add_api_route("/healthz", healthz)
    app.add_api_route("/livez", livez)
    app.add_api_route("/readyz", readyz)
    errors.add_to(app)
    return app
