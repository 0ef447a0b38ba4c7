"""A task that runs inside another one and does not belong to a DAG. Uses internals of Airflow 3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def outside_dag() -> Iterator[None]:
    """Keep tasks created in this context out of the DAG whose file is being parsed."""
    from airflow.sdk.definitions._internal.contextmanager import DagContext

    DagContext.push(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        DagContext.pop()
