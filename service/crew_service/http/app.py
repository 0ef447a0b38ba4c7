"""Builds the application: the endpoints of each crew behind its authentication."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MethodType

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from starlette.routing import Match, Route
from starlette.types import Scope

from crew_service.engine import paths
from crew_service.engine.container import Container, Process
from crew_service.engine.crew import Crew
from crew_service.engine.decisions import Refused
from crew_service.engine.details import Details
from crew_service.engine.health import WATCHED
from crew_service.engine.idempotency import KeyReused
from crew_service.http import documentation, errors, page, several_crews, swagger_ui
from crew_service.http.api import Api, key_reused
from crew_service.http.auth import Authentication
from crew_service.http.dialects import DIALECTS, Dialect
from crew_service.http.dialects.spec import WORDS as SPECIFIED
from crew_service.http.endpoints import Endpoint, table
from crew_service.http.request_metrics import RequestMetrics
from crew_service.http.slots import Slots
from crew_service.http.uploads import Uploads
from crew_service.settings import Settings


def create_app(settings: Settings, crews: Mapping[str, Crew], slots: Slots) -> FastAPI:
    """Serve a single unnamed crew at the root, or named crews below `/crews/<name>`."""
    dialect = DIALECTS[settings.dialect]()
    process = Process(settings, crews, dialect)
    uploads = Uploads(process.files, seconds=settings.body_seconds, most_text=settings.max_body)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        process.start()
        watching = asyncio.create_task(_watch(process))
        yield
        watching.cancel()
        await run_in_threadpool(process.stop)

    if paths.ROOT in crews:
        app = crew_app(process.crews[paths.ROOT], dialect, slots, uploads)
    else:
        app = several_crews.create_app(process)
        for name, crew in process.crews.items():
            app.mount(paths.of_crew(name), crew_app(crew, dialect, slots, uploads, paths.of_crew(name)))
    app.router.lifespan_context = lifespan
    return app


async def _watch(process: Process) -> None:
    """Watch the threads from the event loop, which runs as long as the service does."""
    while True:
        await asyncio.sleep(WATCHED)
        process.health.watch()


def crew_app(service: Container, dialect: Dialect, slots: Slots, uploads: Uploads, base: str = "") -> FastAPI:
    """Return one crew's whole API, with its page and documentation."""
    app = several_crews.bare_app()
    endpoints = table(dialect, flow=service.crew.kind == "flow")
    open_paths = frozenset(endpoint.path for endpoint in endpoints if not endpoint.needs_token)
    app.add_middleware(
        Authentication,
        tokens=service.tokens,
        open_paths=open_paths | page.OPEN_PATHS | swagger_ui.OPEN_PATHS,
        without_header=dialect.without_header,
    )
    app.add_middleware(RequestMetrics, metrics=service.metrics, crew=service.name)
    details = Details(
        service.database,
        service.crew,
        dialect=dialect.name,
        prices=service.settings.prices,
        word=SPECIFIED.__getitem__,
        mend=service.executions.end_unreadable,
    )
    api = Api(service, dialect, slots, details, uploads)
    _add_routes(app, endpoints, api)
    page.Page(service, slots, details).add_to(app)
    app.add_exception_handler(Refused, api.refused)
    app.add_exception_handler(KeyReused, key_reused)
    errors.add_to(app)
    swagger_ui.add_to(app)
    documentation.install(app, endpoints, service.crew, service.limits, base)
    return app


def _add_routes(app: FastAPI, endpoints: tuple[Endpoint, ...], api: Api) -> None:
    """Add the routes, frequent ones first, because the router tries them in order.

    They are plain routes in which each handler reads its own request: FastAPI's routes resolve arguments on every
    request, which makes a poll a third more expensive. documentation.py describes them.
    """
    for endpoint in sorted(endpoints, key=lambda endpoint: not endpoint.frequent):
        handler = MethodType(endpoint.handler, api)
        app.router.routes.append(_Route(endpoint.route, handler, methods=[endpoint.method]))


class _Route(Route):
    """A route that adds itself to the scope for the metrics; Starlette's routes do so only in recent releases."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, more = super().matches(scope)
        return match, {**more, "route": self}
