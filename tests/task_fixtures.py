"""Around a task without Airflow's processes: a crew that may fail, the connection to it, and where records are kept.

Tests that run tasks ask for `simulated_airflow`. Airflow and the package are imported with the first such test.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from faults.dialects import DIALECTS, Dialect
from faults.server import FaultServer
from warning_log import WarningLog

from scripts.stack.waiting import PATIENCE

if TYPE_CHECKING:
    from faults.variables import Variables
    from simulated_airflow import Connect, TaskRun


@pytest.fixture
def simulated_airflow(connect: Connect, a_memory: Variables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks at once, and without a database."""
    from airflow.sensors import base

    from airflow_crew_provider.compat import deferral
    from airflow_crew_provider.kickoff import post_record

    # Fingerprints in a record are slow on purpose: most of the time of a test that sends anything.
    monkeypatch.setattr(post_record, "ROUNDS", 1)
    # Airflow 2 asks its database when a sensor was rescheduled first.
    monkeypatch.setattr(base, "_orig_start_date", lambda **task_instance: None, raising=False)
    # No worker is still leaving when a wait comes back.
    monkeypatch.setattr(deferral, "NOTICED_AFTER", 0.0)


@pytest.fixture
def quick_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses of a resume put its clock forward and take no time, so that its limits are those of production."""
    from airflow_crew_provider.resume import sending
    from airflow_crew_provider.task import drive

    ahead = 0.0

    def pause(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    clock = SimpleNamespace(time=lambda: time.time() + ahead, sleep=pause)
    for module in (drive, sending):
        monkeypatch.setattr(module, "time", clock)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture(params=DIALECTS, ids=str)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


@pytest.fixture
def connect(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Say where a connection leads to; `crew_default` leads to the server. Further arguments are its Extra."""
    from simulated_airflow import TOKEN

    def connect(url: str, token: str = TOKEN, conn_id: str = "crew_default", **extra: Any) -> None:
        connection = {
            "conn_type": "crew",
            "host": url,
            "password": token,
            "extra": {"timeout": PATIENCE, "kickoff_timeout": PATIENCE, **extra},
        }
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))

    connect(server.url)
    return connect


@pytest.fixture
def a_memory(monkeypatch: pytest.MonkeyPatch) -> Variables:
    """Keep the records of tasks without a database."""
    from faults.variables import stand_in_for_variables

    return stand_in_for_variables(monkeypatch)


@pytest.fixture
def variables(a_memory: Variables, monkeypatch: pytest.MonkeyPatch) -> Variables:
    from faults.variables import keep_in_variables

    return keep_in_variables(monkeypatch)


@pytest.fixture
def inbox_variables(a_memory: Variables) -> Variables:
    return a_memory


@pytest.fixture
def a_state_store(a_memory: Variables, monkeypatch: pytest.MonkeyPatch) -> None:
    from faults.variables import keep_beside_state_store

    keep_beside_state_store(monkeypatch)


@pytest.fixture
def full(a_memory: Variables) -> Callable[[TaskRun], None]:
    """Let nothing be recorded any more once the answer to a POST has come."""

    def full(task_run: TaskRun) -> None:
        a_memory.refused = '"kickoff_id"'

    return full


@pytest.fixture
def log_text(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return what was logged so far: to the standard output, or to the log, or, by older Airflows, to both at once."""
    caplog.set_level(logging.INFO)
    heard: list[str] = []

    def log_text() -> str:
        heard.extend(capsys.readouterr())
        printed = "".join(heard)
        others = [each for each in caplog.records if each.getMessage() not in printed]
        return "".join([printed, *(f"{caplog.handler.format(each)}\n" for each in others)])

    return log_text


@pytest.fixture
def log() -> WarningLog:
    return WarningLog()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgive for half a second what is forgiven for five minutes."""
    from airflow_crew_provider.wait import watch

    monkeypatch.setattr(watch, "FORGIVEN", 0.6)
    monkeypatch.setattr(watch, "GRACE_FOR_UNKNOWN_ID", 0.6)
