"""A task's surroundings without an Airflow: what it pushes, what it keeps, and the supervisor that it asks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner
from airflow_stand_ins import Store, Supervisor
from faults.variables import Variables, keep_beside_state_store, stand_in_for_variables

from airflow_crew_provider.compat import version


@pytest.fixture(autouse=True)
def a_memory(monkeypatch: pytest.MonkeyPatch) -> Variables:
    """Keep the records of tasks without a database."""
    return stand_in_for_variables(monkeypatch)


@pytest.fixture
def a_state_store(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_beside_state_store(monkeypatch)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    supervisor = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor


@pytest.fixture
def a_form_for_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """As up to Airflow 3.3, where a form follows its task through retries and clears."""
    monkeypatch.setattr(version, "RELEASE", (3, 3))


@pytest.fixture
def a_form_per_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from Airflow 3.4 on."""
    monkeypatch.setattr(version, "RELEASE", (3, 4))


@pytest.fixture
def context() -> Iterator[dict[str, Any]]:
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(
        id=uuid.uuid4(),
        dag_id="dag",
        run_id="run",
        task_id="task",
        map_index=-1,
        try_number=1,
        max_tries=0,
        pushed=pushed,
        xcom_push=lambda key, value: pushed.__setitem__(key, value),
    )
    return {"ti": ti, "task_instance": ti, "task_state_store": Store()}
