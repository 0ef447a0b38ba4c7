"""What a webhook with a wrong credential costs when very much is stored, beside what it costs when nothing is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
import requests
from airflow.models import xcom
from airflow.models.taskinstance import TaskInstance
from airflow.models.variable import Variable
from airflow.utils.session import create_session
from registered_run import RegisteredRun
from sqlalchemy import delete, insert, select

from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import INBOX_REGISTRATION_KEY

ROWS = 100_000  # of each kind
BATCHES, REQUESTS = 5, 200  # a thousand requests for each side
MOST = 1.5  # a scan of the rows makes it more than two
NOISE = "noise_"
Send = Callable[[], requests.Response]


def wrong(dag_run: RegisteredRun) -> list[Send]:
    """Return webhooks without a valid credential: an unknown address, a wrong token, a wrong capability."""
    unknown = dag_run.kickoff.url[:-10] + "a" * 10
    capability = "/".join([*str(dag_run.kickoff.webhooks.task).split("/")[:-2], "x" * 43, "task"])
    return [
        lambda: dag_run.http.post(unknown, json=dag_run.question(), timeout=20),
        lambda: dag_run.send_question(token="wrong"),
        lambda: dag_run.send_webhook(capability),
    ]


def seconds(sends: list[Send]) -> list[float]:
    """Send a batch, and return what each request took."""
    taken = []
    for number in range(REQUESTS):
        began = time.perf_counter()
        assert sends[number % len(sends)]().status_code == 401
        taken.append(time.perf_counter() - began)
    return taken


@contextmanager
def much_stored(dag_run: RegisteredRun) -> Iterator[None]:
    """Fill the tables that a look-up reads, among the inbox's own names too, until the block ends."""
    keys = [f"{INBOX_REGISTRATION_KEY}{NOISE}{number:038}" for number in range(ROWS)]
    variables = [{"key": key, "val": "{}", "is_encrypted": False} for key in keys]
    with create_session(scoped=False) as session:
        session.execute(insert(Variable.__table__), variables)
        table, names = _xcoms(session, dag_run)
        session.execute(insert(table), [{**names(), "key": f"{NOISE}{number}"} for number in range(ROWS)])
    yield
    with create_session(scoped=False) as session:
        session.execute(delete(Variable.__table__).where(Variable.key.contains(NOISE, autoescape=True)))
        session.execute(delete(table).where(table.c.key.startswith(NOISE)))


def _xcoms(session: Any, dag_run: RegisteredRun) -> tuple[Any, Callable[[], Json]]:
    """Return the table of XComs, and what makes the rest of a row."""
    common = {"value": "a value", "timestamp": datetime.now(UTC)}
    if hasattr(xcom, "XComModelV2"):
        of_task = (TaskInstance.dag_id == dag_run.dag_id, TaskInstance.task_id == "kickoff")
        attempt = session.scalar(select(TaskInstance.id).where(*of_task))
        return xcom.XComModelV2.__table__, lambda: {"id": uuid4(), "task_instance_id": attempt, **common}
    where = {"dag_id": dag_run.dag_id, "run_id": dag_run.run_id, "task_id": "kickoff", "map_index": -1}
    return xcom.XComModel.__table__, lambda: {"dag_run_id": dag_run.dag_run_id, **where, **common}


@pytest.mark.long
@pytest.mark.row("A24")
def test_wrong_credentials_cost_no_more_beside_100_000_stored_rows(
    dag_run: RegisteredRun, record_property: Callable[[str, Any], None]
) -> None:
    sends, empty, full = wrong(dag_run), [], []
    seconds(sends)
    for _ in range(BATCHES):
        empty += seconds(sends)
        with much_stored(dag_run):
            full += seconds(sends)
    ratio = statistics.median(full) / statistics.median(empty)
    record_property("ratio", round(ratio, 3))
    print(f"{len(full)} requests: {ratio:.2f} times what they cost without the rows")  # noqa: T201
    assert ratio < MOST
