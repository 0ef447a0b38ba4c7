"""An XCom backend that keeps values elsewhere: what the inbox needs stands in Airflow's database all the same."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("airflow.sdk.bases.xcom")

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time import comms, task_runner

from airflow_crew_provider.compat import task_instance

WHERE = {"dag_id": "dag", "run_id": "run", "task_id": "kickoff"}


class Elsewhere(BaseXCom):
    """Puts references into the database."""

    @staticmethod
    def serialize_value(value: Any, **where: Any) -> Any:
        return "s3://elsewhere/1"

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        raise AssertionError("this is no reference")


class Database:
    """What the supervisor is asked to store and to read."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def send(self, msg: Any) -> Any:
        if isinstance(msg, comms.SetXCom):
            self.kept[msg.key] = msg.value
            return None
        found = self.kept.get(msg.key)
        if isinstance(msg, comms.GetXComSequenceSlice):
            return comms.XComSequenceSliceResult(root=[found])
        return comms.XComResult(key=msg.key, value=found)

    async def asend(self, msg: Any) -> Any:
        return self.send(msg)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    database = Database()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", database, raising=False)
    monkeypatch.setattr(task_instance, "XCom", Elsewhere)
    return database


@pytest.mark.row("N17")
def test_what_the_inbox_shares_with_tasks_bypasses_an_xcom_backend(database: Database) -> None:
    def elsewhere(**more: Any) -> None:
        raise AssertionError("pushed through the backend")

    context = {"ti": SimpleNamespace(**WHERE, map_index=-1, xcom_push=elsewhere, xcom_pull=elsewhere)}
    value = {"id": "r-1", "at": 1.5}
    task_instance.push_shared(context, "crew_inbox:r-1", value)
    assert database.kept == {"crew_inbox:r-1": value}
    address = {"key": "crew_inbox:r-1", **WHERE, "map_index": -1}
    assert task_instance.get_shared(**address) == value
    assert asyncio.run(task_instance.aget_shared(**address)) == value
    assert task_instance.pull_shared(context, ["kickoff"], "crew_inbox:r-1") == [value]
