"""What Prometheus may ask: requests, executions by state, the pool, and webhooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from airflow_crew_provider.service.engine import paths
from airflow_crew_provider.service.storage.database import Database
from airflow_crew_provider.service.storage.states import State
from airflow_crew_provider.service.storage.tables import dead_letters, executions, outbox

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

    def watch(self, database: Database, pools: Mapping[str, Pool]) -> None:
        self.registry.register(_Gauges(database, pools))


@dataclass(frozen=True)
class Pool:
    """The places in which executions of one crew run."""

    workers: int
    busy: Callable[[], int]


class _Gauges(Collector):
    """Read at every scrape, from the database and the pools; labelled by crew where crews have names."""

    def __init__(self, database: Database, pools: Mapping[str, Pool]) -> None:
        self._database, self._pools = database, pools
        self._labels = [] if paths.ROOT in pools else ["crew"]

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        with self._database.reading() as connection:
            grouped = (executions.c.crew, executions.c.state)
            by_state = select(*grouped, func.count().label("number")).group_by(*grouped)
            counts = {(row.crew, row.state): row.number for row in connection.execute(by_state)}
            undelivered = connection.execute(select(func.count()).select_from(outbox)).scalar_one()
            given_up = connection.execute(select(func.count()).select_from(dead_letters)).scalar_one()
        yield self._states(counts)
        yield GaugeMetricFamily("crew_service_webhooks_waiting", "Webhooks in the outbox.", undelivered)
        yield GaugeMetricFamily("crew_service_webhooks_given_up", "Webhooks that no receiver took.", given_up)
        workers = {name: pool.workers for name, pool in self._pools.items()}
        busy = {name: pool.busy() for name, pool in self._pools.items()}
        yield self._by_crew("crew_service_workers", "Places in the pool.", workers)
        yield self._by_crew("crew_service_workers_busy", "Places taken by a crew.", busy)

    def _states(self, counts: Mapping[tuple[str, str], int]) -> Metric:
        labels = [*self._labels, "state"]
        family = GaugeMetricFamily("crew_service_executions", "Stored executions by state.", labels=labels)
        for name in self._pools:
            for state in State:
                family.add_metric([*self._values(name), state], counts.get((name, state), 0))
        return family

    def _by_crew(self, name: str, text: str, figures: Mapping[str, int]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=self._labels)
        for crew, figure in figures.items():
            family.add_metric(self._values(crew), figure)
        return family

    def _values(self, crew: str) -> list[str]:
        return [crew] if self._labels else []
