"""Serves the root if there are several crews below `/crews/<name>`: health checks and a page for browsers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from crew_service.engine import paths
from crew_service.engine.container import Process
from crew_service.http import errors
from crew_service.http.api import HealthChecks
from crew_service.http.front import Front

MOST_NAMED = 10
# Newer versions of FastAPI record requests and errors with OpenTelemetry; earlier ones ignore the argument.
RECORDED = ("tracing", "metrics", "logs", "operation_spans", "auto_configure")
NO_TELEMETRY: dict[str, Any] = {"telemetry": dict.fromkeys(RECORDED, False)}


def bare_app() -> FastAPI:
    """Return an application without FastAPI's own pages, redirects and telemetry."""
    return FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, **NO_TELEMETRY)


def create_app(process: Process) -> FastAPI:
    app = bare_app()
    checks = HealthChecks(process)
    for path, handler in (("/healthz", checks.healthz), ("/livez", checks.livez), ("/readyz", checks.readyz)):
        app.router.routes.append(Route(path, handler, methods=["GET"]))  # HEAD, too, which monitors send

    async def nothing_here(request: Request, error: Any) -> Response:
        """List the crews that the caller has access to, because a wrong name is an easy mistake to make."""
        header = request.headers.get("authorization", "")
        callable_ = [name for name, crew in process.crews.items() if crew.tokens.of_header(header)]
        if error.status_code == 404 and callable_:
            error = HTTPException(404, f"Nothing is here. The crews are at {_listed(callable_)}")
        return await errors.http_error(request, error)

    Front(process).add_to(app)
    errors.add_to(app)
    app.add_exception_handler(HTTPException, nothing_here)
    return app


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(paths.of_crew(name) for name in names[:MOST_NAMED]) + more
