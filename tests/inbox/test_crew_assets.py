"""The webhook of a crew that Airflow did not start becomes one event of the asset of its connection."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
import requests
from airflow.models.asset import AssetActive, AssetDagRunQueue, AssetEvent, AssetModel, DagScheduleAssetReference
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from registered_run import RegisteredRun
from sqlalchemy import insert, select

from scripts.stack.waiting import PATIENCE

SECRET = "s" * 40
OUTPUT = "what only the crew's own API may hand out"
Send = Callable[..., requests.Response]


@pytest.fixture
def conn_id(monkeypatch: pytest.MonkeyPatch) -> str:
    """A connection that takes webhooks of its crew."""
    conn_id = f"crew_{uuid4().hex[:8]}"
    fields = {"conn_type": "crew", "host": "https://crew.example.com", "password": "t"}
    for name, extra in ((conn_id, {"crew_webhook_secret": SECRET}), ("crew_short", {"crew_webhook_secret": "short"})):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({**fields, "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_CREW_PLAIN", json.dumps(fields))
    return conn_id


@pytest.fixture
def asset(dag_run: RegisteredRun, conn_id: str) -> int:
    """The asset of the connection, by which a DAG is scheduled."""
    uri = f"crew://{conn_id}/completed"
    with create_session(scoped=False) as session:
        model = AssetModel(name=uri, uri=uri, group="asset")
        session.add(model)
        session.flush()
        session.get(DagModel, dag_run.dag_id).is_stale = False  # Airflow 3.0 queues no other
        session.execute(insert(AssetActive).values(name=uri, uri=uri))
        session.execute(insert(DagScheduleAssetReference).values(asset_id=model.id, dag_id=dag_run.dag_id))
        return int(model.id)


@pytest.fixture
def send(dag_run: RegisteredRun, conn_id: str) -> Send:
    """Send a crew webhook as a service does."""

    def send(kickoff_id: Any = "k-1", *, to: str = conn_id, secret: str = SECRET) -> requests.Response:
        body = {"kickoff_id": kickoff_id, "result": OUTPUT, "token_usage": {"total_tokens": 5}, "meta": {"a": OUTPUT}}
        return dag_run.http.post(f"{dag_run.inbox_url}/crew/{to}/{secret}", json=body, timeout=PATIENCE)

    return send


def events(asset: int) -> list[Any]:
    with create_session(scoped=False) as session:
        return list(session.scalars(select(AssetEvent.extra).where(AssetEvent.asset_id == asset)))


def queued(asset: int) -> list[str]:
    with create_session(scoped=False) as session:
        rows = select(AssetDagRunQueue.target_dag_id).where(AssetDagRunQueue.asset_id == asset)
        return list(session.scalars(rows))


def test_a_completed_crew_queues_the_dag_leaving_only_its_ids(
    send: Send, asset: int, conn_id: str, dag_run: RegisteredRun
) -> None:
    answer = send()
    assert (answer.status_code, answer.json()) == (200, {"status": "taken"})
    assert events(asset) == [{"crew_conn_id": conn_id, "kickoff_id": "k-1"}]
    assert queued(asset) == [dag_run.dag_id]


def test_the_same_event_delivered_twice_makes_one_asset_event(send: Send, asset: int) -> None:
    assert [send().json()["status"] for _ in range(2)] == ["taken", "already known"]
    assert len(events(asset)) == 1


def test_ten_concurrent_deliveries_of_one_event_make_one_asset_event(send: Send, asset: int) -> None:
    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda _: send(), range(10)))
    assert [answer.status_code for answer in answers] == [200] * 10
    assert len(events(asset)) == 1


def test_an_execution_with_an_overlapping_id_is_a_separate_event(send: Send, asset: int) -> None:
    for kickoff_id in ("k-11", "k-1", 'k-"1', "k-ä"):
        assert send(kickoff_id).json() == {"status": "taken"}
    assert [each["kickoff_id"] for each in events(asset)] == ["k-11", "k-1", 'k-"1', "k-ä"]


@pytest.mark.parametrize(
    "wrong",
    [{"secret": "x" * 40}, {"secret": "short", "to": "crew_short"}, {"to": "crew_plain"}, {"to": "nobody"}],
    ids=["another-secret", "a-secret-to-be-guessed", "no-secret", "no-connection"],
)
def test_unproven_events_get_the_same_refusal_and_store_nothing(send: Send, asset: int, wrong: dict[str, str]) -> None:
    refused = send(**wrong)
    assert refused.status_code == 401
    assert refused.json() == {"detail": "Unknown address or wrong credential"}
    assert events(asset) == []


def test_a_wrong_secret_is_refused_before_the_body_is_read(dag_run: RegisteredRun, conn_id: str) -> None:
    url = f"{dag_run.inbox_url}/crew/{conn_id}"
    assert dag_run.http.post(f"{url}/{'x' * 40}", b"x" * (1024 * 1024 + 1), timeout=PATIENCE).status_code == 401
    assert dag_run.http.post(f"{url}/{SECRET}", b"x" * (1024 * 1024 + 1), timeout=PATIENCE).status_code == 413


@pytest.mark.parametrize("kickoff_id", [None, 7, "", "x" * 5000])
def test_a_webhook_without_an_id_is_refused(send: Send, asset: int, kickoff_id: Any) -> None:
    assert send(kickoff_id).status_code == 422
    assert events(asset) == []


def test_where_no_dag_uses_the_asset_the_sender_is_told(send: Send) -> None:
    refused = send()
    assert refused.status_code == 404
    assert refused.json()["detail"] == "no DAG uses this connection's asset; nothing was stored"


def test_a_paused_dag_is_not_queued_but_keeps_the_event(send: Send, asset: int, dag_run: RegisteredRun) -> None:
    with create_session(scoped=False) as session:
        session.get(DagModel, dag_run.dag_id).is_paused = True
    assert send().json() == {"status": "taken"}
    assert len(events(asset)) == 1
    assert queued(asset) == []
