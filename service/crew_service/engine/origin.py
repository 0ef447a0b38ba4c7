"""The DAG run that started an execution, read from `meta.airflow`, which any caller can set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

LONGEST_ID = 250  # characters, as in Airflow
UNFIT = re.compile(r"[\s\x00-\x1f\x7f\\]")  # not allowed in an address


@dataclass(frozen=True)
class Review:
    """The Airflow task that asks for the decision."""

    task_id: str
    approvals: int
    named_people: bool


@dataclass(frozen=True)
class Origin:
    dag_id: str
    run_id: str
    url: str  # of the DAG run in Airflow; empty if unknown
    review: Review | None


def origin(meta: Any) -> Origin | None:
    """Return the DAG run, with empty fields for missing details; None if no DAG is named."""
    airflow = meta.get("airflow") if isinstance(meta, dict) else None
    airflow = airflow if isinstance(airflow, dict) else {}
    dag_id, run_id = _id(airflow.get("dag_id")), _id(airflow.get("run_id"))
    if not dag_id:
        return None
    return Origin(dag_id, run_id, _url(airflow.get("base_url"), dag_id, run_id), _review(airflow.get("review")))


def _id(value: Any) -> str:
    """Return an id in a form that every database accepts; an empty string if Airflow could not have created it."""
    if not isinstance(value, str) or len(value) > LONGEST_ID:
        return ""
    return value.replace("\0", "").encode("utf-8", "replace").decode()


def _url(base: Any, dag_id: str, run_id: str) -> str:
    if not isinstance(base, str) or not run_id or UNFIT.search(base):
        return ""
    try:
        parts = urlsplit(base)
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        return ""
    return f"{base.rstrip('/')}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def _review(value: Any) -> Review | None:
    task_id = _id(value.get("task_id")) if isinstance(value, dict) else ""
    if not task_id:
        return None
    approvals = value.get("approvals")
    return Review(task_id, approvals if type(approvals) is int else 1, value.get("named_people") is True)
