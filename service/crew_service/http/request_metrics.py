"""Counts and times every request for the metrics, and traces requests that change something."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crew_service import tracing
from crew_service.engine.metrics import Metrics


class RequestMetrics:
    """Middleware that labels each request with the path of its route, so that ids do not become labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics, crew: str) -> None:
        self._app = app
        self._metrics = metrics
        self._crew = crew

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, base = time.perf_counter(), scope.get("root_path", "")
        code = 500

        async def note(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        with tracing.request(scope) as span:
            try:
                await self._app(scope, receive, note)
            finally:
                path = base + getattr(scope.get("route"), "path", "other")
                self._metrics.answered(self._crew, path, code, time.perf_counter() - began)
                if span:
                    tracing.answered(span, path, code)
