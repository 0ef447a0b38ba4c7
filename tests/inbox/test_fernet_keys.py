"""Row A14: after a change of Airflow's Fernet key, a record that is there is not taken for none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.models.variable import Variable
from airflow.triggers.base import BaseTrigger, TriggerEvent
from cryptography.fernet import Fernet
from faults.variables import stand_in_for_variables
from registered_run import read_key_anew

from airflow_crew_provider.compat import variables
from airflow_crew_provider.stored_names import RUN_STATE
from airflow_crew_provider.task.record import PLAIN_OF_RUN
from airflow_crew_provider.task.store import TaskRecord, TaskStateUnavailable

pytestmark = pytest.mark.row("A14")
RECORD = {"kickoff_id": "k-1"}


class Task(BaseTrigger):
    """Stands for a task: keeps a record, if it has one, and ends with what it recalls."""

    def __init__(self, identity: dict[str, Any], record: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.identity, self.record = identity, record

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("test_fernet_keys.Task", {"identity": self.identity, "record": self.record})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent(await asyncio.to_thread(self.recalled))

    def recalled(self) -> dict[str, Any]:
        state = TaskRecord(self.identity).part("crew_kickoff", None)
        try:
            if self.record:
                state.keep(self.record)
            return state.recall()
        except TaskStateUnavailable as error:
            return {"problem": str(error)}


def by_supervisor(task: Task) -> Any:
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor

    event = InProcessTestSupervisor.run_trigger_in_process(trigger=task, ti=SimpleNamespace(id=uuid4()))
    assert event
    return event.payload


@pytest.fixture
def identity(database: None) -> dict[str, Any]:
    return {"dag_id": "d", "run_id": uuid4().hex, "task_id": "t", "map_index": -1}


def use_keys(monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", ",".join(keys))
    read_key_anew()


@pytest.mark.parametrize(
    "access",
    [
        pytest.param("supervisor", marks=pytest.mark.since_airflow("3.3")),
        "database",  # as a task of Airflow 2.11
    ],
)
def test_a_record_is_an_error_until_its_fernet_key_returns(
    identity: dict[str, Any], monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    if access == "database":
        monkeypatch.setattr(variables, "Variable", Variable)
    ends = by_supervisor if access == "supervisor" else Task.recalled
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    use_keys(monkeypatch, old)
    try:
        assert ends(Task(identity)) == {}
        assert ends(Task(identity, RECORD)) == RECORD
        use_keys(monkeypatch, new)
        problem = ends(Task(identity))["problem"]
        assert "cannot be decrypted" in problem
        assert "fernet_key" in problem
        assert ends(Task({**identity, "task_id": "another"})) == {}
        use_keys(monkeypatch, new, old)
        assert ends(Task(identity)) == RECORD
    finally:
        monkeypatch.undo()
        read_key_anew()


@pytest.mark.row("A47")
def test_workers_with_different_fernet_keys_open_each_others_texts(
    identity: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_variables(monkeypatch)  # the API server, which has the key that counts
    record = {"execution_id": "k-1", "review": {"output": "A draft."}}
    try:
        for expected in ({}, record, record):
            use_keys(monkeypatch, Fernet.generate_key().decode())
            part = TaskRecord(identity).part(RUN_STATE, PLAIN_OF_RUN)
            assert part.recall() == expected
            part.keep(record)
    finally:
        monkeypatch.undo()
        read_key_anew()
