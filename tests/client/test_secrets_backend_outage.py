"""The secrets back end that holds the connection is away: Airflow says that there is no such connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat import connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from faults.dialects import SPEC
from faults.server import FaultServer
from simulated_airflow import PATHS, Connect, run, wait

from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.watch import COMPLETED, GAVE_UP

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
POLL = "GET /status/k-1"
path = pytest.mark.parametrize("path", PATHS)
Away = Callable[[int], list[str]]


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    """Let so many look-ups fail from now on; return what was asked for in vain."""
    find, afind = BaseHook.get_connection, connection.get_async_connection
    failed: list[str] = []

    def begin(times: int) -> list[str]:
        def look_up(conn_id: str) -> Any:
            if len(failed) < times:
                failed.append(conn_id)
                raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
            return find(conn_id)

        async def alook_up(conn_id: str) -> Any:
            if len(failed) < times:
                return look_up(conn_id)
            return await afind(conn_id)

        monkeypatch.setattr(BaseHook, "get_connection", staticmethod(look_up))
        monkeypatch.setattr(connection, "get_async_connection", alook_up)
        return failed

    return begin


@pytest.mark.row("N18")
@path
def test_a_wait_forgives_a_secrets_backend_unavailable_at_its_start(path: str, server: FaultServer, away: Away) -> None:
    server.on(POLL, SPEC.running, SPEC.completed)
    failed = away(3)
    assert wait(path).kind == COMPLETED
    assert len(failed) == 3


@pytest.mark.row("N18")
@path
def test_a_back_end_that_stays_unavailable_ends_the_wait(
    path: str, server: FaultServer, away: Away, impatient: None
) -> None:
    away(10_000)
    outcome = wait(path)
    assert outcome.kind == GAVE_UP
    assert "isn't defined" in outcome.message
    assert "'crew_default'" in outcome.message or "`crew_default`" in outcome.message


@pytest.mark.row("N18")
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_sensor_forgives_it_from_its_first_moment_on(server: FaultServer, away: Away, deferrable: bool) -> None:
    server.on(POLL, SPEC.completed)
    away(2)
    sensor = CrewStatusSensor(task_id="wait", kickoff_id="k-1", poke_interval=0.05, deferrable=deferrable)
    assert run(sensor)["state"] == "completed"


@pytest.mark.row("N18", "N5")
@path
def test_a_token_rotated_during_a_backend_outage_is_found_later(
    path: str, server: FaultServer, connect: Connect, away: Away
) -> None:
    def rotate(request: Any) -> Any:
        connect(server.url, token="the-new-token-of-the-crew")
        away(2)
        return _reply(request)

    def _reply(request: Any) -> Any:
        known = request.headers["authorization"] == "Bearer the-new-token-of-the-crew"
        return SPEC.completed if known else 401

    server.on(POLL, SPEC.running, rotate, _reply)
    assert wait(path).kind == COMPLETED
