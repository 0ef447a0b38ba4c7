"""A fault server behind the connection `crew_default`, and the memory of tasks where Airflow has none of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faults.dialects import DIALECTS, Dialect
from faults.server import FaultServer
from faults.variables import Variables, keep_in_state_store, keep_in_variables, stand_in_for_variables
from simulated_airflow import TOKEN, Connect, TaskRun

from airflow_crew_provider.compat import deferral, task_state, version
from airflow_crew_provider.kickoff import post_record
from scripts.stack.waiting import PATIENCE


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture(params=DIALECTS, ids=str)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Say where the connection `crew_default` leads to; further arguments are its Extra."""

    def connect(url: str, token: str = TOKEN, conn_id: str = "crew_default", **extra: Any) -> None:
        connection = {
            "conn_type": "crew",
            "host": url,
            "password": token,
            "extra": {"timeout": PATIENCE, "kickoff_timeout": PATIENCE, **extra},
        }
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))

    return connect


@pytest.fixture(autouse=True)
def quick_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprints in a record are slow on purpose: most of the time of a test that sends anything."""
    monkeypatch.setattr(post_record, "ROUNDS", 1)


@pytest.fixture(autouse=True)
def connected(server: FaultServer, connect: Connect) -> None:
    connect(server.url)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Variables:
    return keep_in_variables(monkeypatch)


@pytest.fixture
def a_state_store(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_in_state_store(monkeypatch)


@pytest.fixture
def store_of(a_memory: Variables) -> Callable[[TaskRun], Any]:
    """Return what a task keeps its record in on this Airflow."""
    if task_state.NEVER_EXPIRE is None or version.clears_discard_task_state():
        return lambda task_run: a_memory
    return lambda task_run: task_run.store


@pytest.fixture(autouse=True)
def a_memory(monkeypatch: pytest.MonkeyPatch) -> Variables:
    """On versions without a state store, and where a clear empties it, Variables serve in every test."""
    return stand_in_for_variables(monkeypatch)


@pytest.fixture
def log_text(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return what was logged so far: to the standard output, or by older versions of Airflow to the log."""
    caplog.set_level(logging.INFO)
    heard: list[str] = []

    def log_text() -> str:
        heard.extend(capsys.readouterr())
        return max("".join(heard), caplog.text, key=len)

    return log_text


@pytest.fixture(autouse=True)
def no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow 2 asks its database when a sensor was rescheduled first; here there is none."""
    from airflow.sensors import base

    monkeypatch.setattr(base, "_orig_start_date", lambda **task_instance: None, raising=False)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting tasks come back at once: here no worker is still leaving."""
    monkeypatch.setattr(deferral, "NOTICED_AFTER", 0.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgive for half a second what is forgiven for five minutes."""
    from airflow_crew_provider.wait import watch

    monkeypatch.setattr(watch, "FORGIVEN", 0.6)
    monkeypatch.setattr(watch, "GRACE_FOR_UNKNOWN_ID", 0.6)
