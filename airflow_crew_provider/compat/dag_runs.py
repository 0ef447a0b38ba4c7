"""Which DAG runs are over, as far as what is stored for them is concerned."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from airflow.models.dagrun import DagRun
from sqlalchemy import select, tuple_

OVER = ("success", "failed")
KEPT_AFTER_RUN = timedelta(hours=20)  # with an hour between two sweeps, less than a day

Run = tuple[str, str]  # DAG id, run id


def alive(session: Any, runs: Iterable[Run], now: datetime) -> set[Run]:
    """Return those of some DAG runs for which something is still kept: neither gone nor over for long."""
    columns = (DagRun.dag_id, DagRun.run_id)
    found = session.execute(select(*columns, DagRun.state, DagRun.end_date).where(tuple_(*columns).in_(set(runs))))
    return {(row.dag_id, row.run_id) for row in found if not _is_over(row, now)}


def _is_over(run: Any, now: datetime) -> bool:
    return run.state in OVER and run.end_date is not None and run.end_date < now - KEPT_AFTER_RUN
