"""A trigger reads what the database holds in `dag.test()` too, where a supervisor of its own answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.models.connection import Connection
from airflow.triggers.base import BaseTrigger, TriggerEvent
from airflow.utils.session import create_session

from airflow_crew_provider.compat.connections import aget_connection
from airflow_crew_provider.compat.task_instance import aget_shared


class Finds(BaseTrigger):
    """Ends with the host of a connection."""

    def __init__(self, conn_id: str) -> None:
        super().__init__()
        self.conn_id = conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("test_connections.Finds", {"conn_id": self.conn_id})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent((await aget_connection(self.conn_id)).host)


class Reads(Finds):
    """Ends with an XCom that nobody has pushed."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        where = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
        yield TriggerEvent({"found": await aget_shared(key="k", **where)})


@pytest.fixture
def stored(database: None) -> str:
    """The id of a connection that only the database has."""
    conn_id = f"crew_{uuid4().hex[:8]}"
    with create_session() as session:
        session.add(Connection(conn_id=conn_id, conn_type="crew", host="crew.example.com"))
    return conn_id


@pytest.mark.waits
@pytest.mark.since_airflow("3.1")  # before, `dag.test()` runs triggers without a supervisor
def test_a_dag_test_trigger_finds_a_connection_of_the_database(stored: str) -> None:
    assert ended(Finds(stored)) == "crew.example.com"


@pytest.mark.since_airflow("3.1")
def test_an_xcom_is_read_by_a_trigger_of_dag_test(database: None) -> None:
    assert ended(Reads("unused")) == {"found": None}


def ended(trigger: BaseTrigger) -> Any:
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor

    event = InProcessTestSupervisor.run_trigger_in_process(trigger=trigger, ti=SimpleNamespace(id=uuid4()))
    return event and event.payload
