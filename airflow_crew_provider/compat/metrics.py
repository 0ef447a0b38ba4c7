"""Metrics about crews, sent through Airflow.

The names are public and must not change: `docs/data-and-cost.md` lists them. Since Airflow 3.2, there are two `Stats`:
one is configured in task processes, the other in Airflow's own processes, such as the triggerer.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from airflow.providers.common.compat.sdk import Stats

from airflow_crew_provider.models import Execution, Json, cost_usd, total_tokens

TOO_MANY = 2**63  # for a counter; any metrics sent along with a value this high would be lost


def started(conn_id: str) -> None:
    """Count an execution whose kickoff returned an id."""
    _count("execution.started", conn_id=conn_id)


def outcome_unknown(conn_id: str, request: str) -> None:
    """Count a POST that may have arrived; ``request`` is ``kickoff`` or ``resume``."""
    _count("execution.unknown", conn_id=conn_id, request=request)


def failed(conn_id: str, usage: Json | None) -> None:
    """Count a wait that ended with a failed execution, and its usage."""
    _count("execution.failed", conn_id=conn_id)
    _used(conn_id, usage)


def completed(conn_id: str, execution: Execution) -> None:
    """Count a wait that ended with a completed execution, and its usage."""
    _count("execution.completed", conn_id=conn_id)
    if execution.execution_time is not None:
        _time("execution.duration", execution.execution_time, conn_id=conn_id)
    _used(conn_id, execution.usage)


def polled(conn_id: str, *, in_triggerer: bool) -> None:
    """Count a poll, successful or not."""
    _count("execution.polls", in_triggerer=in_triggerer, conn_id=conn_id)


def reviewed(conn_id: str, kind: str, opened: datetime | None, decided: datetime) -> None:
    """Record how long a review waited for a person; ``kind`` is ``draft``, or the kind of an agent's question."""
    if opened is not None:
        # The two times come from machines whose clocks may differ.
        _time("review.duration", max(0.0, (decided - opened).total_seconds()), conn_id=conn_id, kind=kind)


def _used(conn_id: str, usage: Json | None) -> None:
    tokens, cost = total_tokens(usage), cost_usd(usage)
    if tokens is not None:
        _count("execution.tokens", int(tokens), conn_id=conn_id)
    if cost is not None:  # an integer, because several receivers truncate counters
        _count("execution.cost_usd_micros", round(cost * 1_000_000), conn_id=conn_id)


def _count(name: str, number: int = 1, *, in_triggerer: bool = False, **tags: str) -> None:
    if number >= TOO_MANY:
        return
    with suppress(Exception):  # a metric must never fail a task
        _stats(in_triggerer).incr(f"crew.{name}", number, tags=tags)


def _time(name: str, seconds: float, **tags: str) -> None:
    with suppress(Exception):
        _stats(False).timing(f"crew.{name}", timedelta(seconds=seconds), tags=tags)


@cache
def _stats(in_triggerer: bool) -> Any:
    """Return the metrics client configured in a task's process, or in a triggerer."""
    if not in_triggerer:
        return Stats
    try:
        from airflow.observability.stats import Stats as OfAirflow
    except ImportError:  # before Airflow 3.2
        from airflow.stats import Stats as OfAirflow  # type: ignore[assignment]
    return OfAirflow
