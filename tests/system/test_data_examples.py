"""The examples of data pipelines: caught-up days in PostgreSQL, and customers under a pool."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest

from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup, wait_until
from scripts.stack.database import ThrowAwayDatabase
from tests.service.databases import on_postgresql
from tests.system.conftest import EXAMPLES

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
SLOTS = 5


def served(crew: str, conn_id: str, airflow: AirflowStack, group: ProcessGroup) -> CrewService:
    service = CrewService(str(EXAMPLES / "crews" / f"{crew}.json"), name=f"crew-service-{crew}", group=group).start()
    airflow.api.add_connection(conn_id, **service.connection)
    return service


@pytest.fixture(scope="module")
def warehouse(airflow: AirflowStack) -> Iterator[ThrowAwayDatabase]:
    with on_postgresql(is_empty=True) as database:
        at = urlsplit(database.url)
        where = {"host": at.hostname, "port": at.port, "login": at.username, "password": at.password}
        airflow.api.add_connection("crew_warehouse", conn_type="postgres", schema=database.name, **where)
        yield database


def rows(database: ThrowAwayDatabase) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(database.url.replace("+psycopg2", ""))) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT day::text, mentions, execution_id FROM daily_figures ORDER BY day")
        return cursor.fetchall()


def runs_of(airflow: AirflowStack, dag_id: str) -> list[DagRun]:
    found = airflow.api.pages(f"dags/{dag_id}/dagRuns", "dag_runs", order_by="run_after")
    return [DagRun(airflow.api, dag_id, run["dag_run_id"]) for run in found]


@pytest.mark.long
def test_missed_days_are_caught_up_and_reruns_replace_their_rows(
    airflow: AirflowStack, group: ProcessGroup, warehouse: ThrowAwayDatabase
) -> None:
    served("daily_figures", "crew_figures", airflow, group)
    airflow.api.wait_for_dag("crew_to_postgres")
    airflow.api.json("PATCH", "dags/crew_to_postgres", json={"is_paused": False})
    wait_until(lambda: len(runs_of(airflow, "crew_to_postgres")) == len(DAYS), "a run for each day")
    runs = runs_of(airflow, "crew_to_postgres")
    for run in runs:
        run.wait_for("success")
    before = rows(warehouse)
    assert [row[:2] for row in before] == [(day, 42) for day in DAYS]

    runs[1].clear("figures", downstream=True)
    wait_until(lambda: rows(warehouse)[1] != before[1], "the row to be replaced")
    runs[1].wait_for("success")
    after = rows(warehouse)
    assert [row[:2] for row in after] == [(day, 42) for day in DAYS]
    assert [old[2] == new[2] for old, new in zip(before, after, strict=True)] == [True, False, True]


@pytest.mark.long
def test_twenty_customers_run_five_at_a_time_and_are_summarized(airflow: AirflowStack, group: ProcessGroup) -> None:
    service = served("customer_letters", "crew_letters", airflow, group)
    airflow.api.json("POST", "pools", json={"name": "crews", "slots": SLOTS, "include_deferred": True})
    run = airflow.api.trigger("crew_per_customer")
    run.wait_for("success")
    assert run.xcom("summarize") == {"letters": 20, "late_invoices": 30}
    named = {each["rendered_map_index"] for each in run.tasks() if each["task_id"] == "letter"}
    assert named == {f"Customer {number:02}" for number in range(1, 21)}
    assert most_at_once(service) <= SLOTS


def most_at_once(service: CrewService) -> int:
    """Count the executions that overlapped, by what the service has stored."""
    with closing(sqlite3.connect(service.folder / "service.db")) as database:
        spans = database.execute("SELECT created_at, ended_at FROM executions").fetchall()
    assert len(spans) == 20
    return max(sum(begun <= moment < ended for begun, ended in spans) for moment, _ in spans)
