"""Prometheus metrics: requests, webhooks, tokens, cost, executions by state, and pools; by crew if crews have names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from crew_service.engine import paths
from crew_service.engine.budgets import Budgets, Standing
from crew_service.engine.usage import MOST_MODELS, ByModel
from crew_service.prices import Prices
from crew_service.storage import counts, holds
from crew_service.storage.database import Database
from crew_service.storage.states import State
from crew_service.storage.tables import executions, outbox

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    def __init__(self, crews: Collection[str], prices: Prices | None = None) -> None:
        self._labels = [] if paths.ROOT in crews else ["crew"]
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "crew_service_request_seconds",
            "Requests by path and code.",
            (*self._labels, "path", "code"),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._webhooks = Counter(
            "crew_service_webhooks",
            "Attempts to deliver a webhook.",
            (*self._labels, "kind", "outcome"),
            registry=self._registry,
        )

        self._prices = prices or Prices()
        self._models: set[str] = set()
        self._tokens = Counter(
            "crew_service_tokens",
            "Tokens used by language models, by model.",
            (*self._labels, "model", "kind"),
            registry=self._registry,
        )
        self._cost = Counter(
            "crew_service_cost_usd",
            "Cost of language models with a price, in USD.",
            (*self._labels, "model"),
            registry=self._registry,
        )

    def watch(self, database: Database, pools: Mapping[str, Pool], budgets: Budgets) -> None:
        self._registry.register(_Gauges(database, pools, self._labels, budgets))

    def answered(self, crew: str, path: str, code: int, seconds: float) -> None:
        self._requests.labels(*self._values(crew), path, code).observe(seconds)

    def tried(self, crew: str, kind: str, outcome: str) -> None:
        self._webhooks.labels(*self._values(crew), kind, outcome).inc()

    def spent(self, crew: str, by_model: ByModel) -> None:
        """Count an execution's additional usage in this process, by model."""
        for model, figures in by_model.items():
            label = self._label(model)
            for kind in ("prompt", "completion"):
                self._tokens.labels(*self._values(crew), label, kind).inc(figures[f"{kind}_tokens"])
            if self._prices and (cost := self._prices.cost(model, figures)) is not None:
                self._cost.labels(*self._values(crew), label).inc(cost)

    def _label(self, model: str) -> str:
        """Return a model's label: a crew may use any number of model names, so those beyond a limit share one."""
        if model not in self._models and len(self._models) >= MOST_MODELS:
            return "others"
        self._models.add(model)
        return model

    def text(self, crew: str | None = None) -> bytes:
        """Return the metrics of one crew, or of all crews, in Prometheus format."""
        if crew is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        registry.register(_OfCrew(self._registry, crew))
        return generate_latest(registry)

    def _values(self, crew: str) -> list[str]:
        return [crew] if self._labels else []


@dataclass(frozen=True)
class Pool:
    """The pool that runs one crew's executions."""

    workers: int
    busy: Callable[[], int]


class _Gauges(Collector):
    """Reads the database and the pools on every scrape."""

    def __init__(self, database: Database, pools: Mapping[str, Pool], labels: list[str], budgets: Budgets) -> None:
        self._database, self._pools, self._labels, self._budgets = database, pools, labels, budgets

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        with self._database.reading() as connection:
            stored = counts.stored(connection)
            held = holds.numbers(connection, now=self._database.now())
            standings = self._budgets.standings(connection, now=self._database.now()) if self._budgets else []
            undelivered = self._undelivered(connection)
        in_queue = {crew: number for (crew, what), number in stored.items() if what == State.QUEUED and number}
        queued = {crew: max(0, number - held.get(crew, 0)) for crew, number in in_queue.items()}
        given_up = self._served() | {crew: number for (crew, what), number in stored.items() if what == counts.GIVEN_UP}
        yield self._states(stored)
        # Every process reports the same number, so take the maximum over processes, not the sum.
        yield self._by_crew("crew_service_queued", "Executions that could run now.", self._served() | queued)
        yield self._by_crew("crew_service_held", "Queued executions that a budget holds.", self._served() | held)
        yield from _of_budgets(standings)
        yield self._by_crew("crew_service_webhooks_waiting", "Webhooks in the outbox.", undelivered)
        yield self._by_crew(
            "crew_service_webhooks_given_up", "Webhooks that were not delivered.", self._served() | given_up
        )
        workers = {name: pool.workers for name, pool in self._pools.items()}
        busy = {name: pool.busy() for name, pool in self._pools.items()}
        yield self._by_crew("crew_service_workers", "Size of the pool.", workers)
        yield self._by_crew("crew_service_workers_busy", "Pool workers in use.", busy)

    def _undelivered(self, connection: Connection) -> dict[str, int]:
        """Count each crew's waiting webhooks, including those of crews no longer served."""
        crew = select(executions.c.crew).where(executions.c.id == outbox.c.execution_id).scalar_subquery().label("crew")
        waiting = select(crew).select_from(outbox).subquery()
        query = select(waiting.c.crew, func.count().label("number")).group_by(waiting.c.crew)
        return self._served() | {row.crew: row.number for row in connection.execute(query) if row.crew is not None}

    def _served(self) -> dict[str, int]:
        return dict.fromkeys(self._pools, 0)

    def _states(self, stored: Mapping[tuple[str, str], int]) -> Metric:
        labels = [*self._labels, "state"]
        family = GaugeMetricFamily("crew_service_executions", "Stored executions by state.", labels=labels)
        for name in self._pools:
            for state in State:
                crew = [name] if self._labels else []
                family.add_metric([*crew, state], stored.get((name, state), 0))
        return family

    def _by_crew(self, name: str, text: str, figures: Mapping[str, int]) -> Metric:
        if not self._labels:
            return GaugeMetricFamily(name, text, sum(figures.values()))
        family = GaugeMetricFamily(name, text, labels=self._labels)
        for crew, figure in figures.items():
            family.add_metric([crew], figure)
        return family


def _of_budgets(standings: list[Standing]) -> Iterator[Metric]:
    """Report the budgets, which every process does alike."""
    labels = ["who", "unit", "window"]
    used = GaugeMetricFamily("crew_service_budget_used", "Used in the present window.", labels=labels)
    amount = GaugeMetricFamily("crew_service_budget_amount", "What may be used in a window.", labels=labels)
    for standing in standings:
        values = [standing.budget.who, standing.budget.unit, standing.budget.window]
        used.add_metric(values, standing.used)
        amount.add_metric(values, standing.budget.amount)
    if standings:
        yield from (used, amount)


class _OfCrew(Collector):
    """Restricts a registry to one crew."""

    def __init__(self, registry: CollectorRegistry, crew: str) -> None:
        self._registry, self._crew = registry, crew

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if sample.labels.get("crew") == self._crew]
            yield family
