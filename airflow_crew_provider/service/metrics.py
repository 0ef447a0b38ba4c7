"""What Prometheus may ask: requests, executions by state, the pool, and webhooks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .states import State
from .tables import executions, outbox

if TYPE_CHECKING:
    from .assembly import Service

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "crew_service_request_seconds",
            "Requests by path and code.",
            ("path", "code"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.webhooks = Counter(
            "crew_service_webhooks", "Tries to deliver a webhook.", ("kind", "outcome"), registry=self.registry
        )

    def watch(self, service: Service) -> None:
        self.registry.register(_Gauges(service))


class Measured:
    """Counts each request under the path of its route, so that ids make no series of their own."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._requests = metrics.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        code = 500

        async def note(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self._requests.labels(path, code).observe(time.perf_counter() - began)


class _Gauges(Collector):
    """Read at every scrape, from the database and the pool."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        with self._service.store.reading() as connection:
            by_state = select(executions.c.state, func.count().label("number")).group_by(executions.c.state)
            counts = {row.state: row.number for row in connection.execute(by_state)}
            undelivered = connection.execute(select(func.count()).select_from(outbox)).scalar_one()
        states = GaugeMetricFamily("crew_service_executions", "Stored executions by state.", labels=["state"])
        for state in State:
            states.add_metric([state], counts.get(state, 0))
        yield states
        yield GaugeMetricFamily("crew_service_webhooks_waiting", "Webhooks in the outbox.", undelivered)
        yield GaugeMetricFamily("crew_service_workers", "Places in the pool.", self._service.workers)
        yield GaugeMetricFamily("crew_service_workers_busy", "Places taken by a crew.", self._service.runner.running())
