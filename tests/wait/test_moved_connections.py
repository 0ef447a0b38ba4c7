"""A connection that is edited while other waits hold the old one: each wait ends where it points by now."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseHook
from faults.dialects import SPEC
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import PATHS, TRIGGERER, Connect, wait

from airflow_crew_provider.client import lookups
from airflow_crew_provider.compat.connections import aget_connection
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import ExecutionState
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait import watch
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.watch import COMPLETED
from scripts.stack.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
POLL = "GET /status/k-1"


@pytest.mark.row("N29")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("refusal", [401, 403, 404])
def test_a_wait_finds_the_new_host_after_refusals_or_404(
    path: str, server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)

        def moved(request: Any) -> Any:
            if len(server.requests) < 2:
                return Reply(body=SPEC.running)
            connect(new.url)
            return Reply(status=refusal, body={"detail": "gone"})

        monkeypatch.setattr(server, "_decide", moved)
        assert wait(path).kind == COMPLETED
        assert len(server.requests) == 2


@pytest.mark.row("N29")
def test_a_new_wait_asks_where_the_connection_points_now(server: FaultServer, connect: Connect) -> None:
    async def both() -> tuple[str, str]:
        old = CrewHook()
        await old.hold()
        connect("http://127.0.0.1:9", token="another")
        new = CrewHook()
        await new.hold()
        hosts = old.connection.deployment.base_url, new.connection.deployment.base_url
        await old.release()
        await new.release()
        return hosts

    old, new = asyncio.run(both())
    assert old != new == "http://127.0.0.1:9"


# --- while polls fail ---

REFUSES = "refuses connections"
LOGIN_PAGE = Reply(body=b"<html>", headers={"Content-Type": "text/html"})
path = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def short_minute(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return what stands for the minute."""
    monkeypatch.setattr(lookups, "WHILE_POLLING", 0.3)
    return 0.3


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return of which connections Airflow was asked."""
    names: list[str] = []
    get_connection = BaseHook.get_connection

    def counted(conn_id: str) -> Any:
        names.append(conn_id)
        return get_connection(conn_id)

    async def acounted(conn_id: str) -> Any:
        names.append(conn_id)
        return await aget_connection(conn_id)

    monkeypatch.setattr(CrewHook, "get_connection", staticmethod(counted))
    monkeypatch.setattr(lookups, "aget_connection", acounted)
    return names


@pytest.mark.row("N34")
@path
@pytest.mark.parametrize(
    "failure", [REFUSES, 500, 503, 429, LOGIN_PAGE], ids=["refused", "500", "503", "429", "login page"]
)
def test_waits_end_at_the_new_host_while_the_old_fails(
    path: str, server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, failure: Any, short_minute: float
) -> None:
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)

        def fails(request: Any) -> Any:
            if len(server.requests) < 2:
                return Reply(body=SPEC.running)
            if failure == REFUSES:
                connect(new.url)
                server.close()
                return NoReply(RESET)
            if len(server.requests) == 4:
                connect(new.url)
            return Reply(status=failure) if isinstance(failure, int) else failure

        monkeypatch.setattr(server, "_decide", fails)
        assert wait(path, timeout=60).kind == COMPLETED


@pytest.mark.row("N34")
@path
@pytest.mark.parametrize("status", [400, 410])
def test_before_giving_up_a_wait_immediately_looks_up_its_connection(
    path: str, server: FaultServer, connect: Connect, status: int
) -> None:
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)
        server.on(POLL, SPEC.running, lambda request: connect(new.url) or Reply(status=status))
        assert wait(path).kind == COMPLETED


@pytest.mark.row("N34")
@path
def test_a_wait_giving_up_within_the_minute_looks_up_again(
    path: str, server: FaultServer, connect: Connect, looked_up: list[str], impatient: None
) -> None:
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)

        def fails(request: Any) -> Any:
            connect(new.url)
            return Reply(status=503)

        server.on(POLL, fails)
        assert wait(path).kind == COMPLETED
        assert looked_up == ["crew_default"] * 2


@pytest.mark.row("N34")
@path
@pytest.mark.parametrize("is_found", [True, False])
def test_waits_of_one_process_share_a_connection_lookup_per_minute(
    path: str,
    server: FaultServer,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    looked_up: list[str],
    short_minute: float,
    is_found: bool,
) -> None:
    """Also while the secrets back end does not find it, which ends no wait."""

    def fails(request: Any) -> Any:
        if not is_found:
            monkeypatch.delenv("AIRFLOW_CONN_CREW_DEFAULT", raising=False)
        return Reply(status=503)

    server.on(POLL, *[SPEC.running] * WAITS, *[fails] * 40, SPEC.completed)
    began = time.monotonic()
    assert set(all_waits(path)) == {COMPLETED}
    first = 1 if path == TRIGGERER else WAITS
    ends = WAITS  # each of which looks it up before it is believed
    assert 1 <= len(looked_up) - first <= (time.monotonic() - began) / short_minute + 1 + ends


# --- while polls are answered ---

ENDS = {
    "completed": SPEC.completed,
    "pending": {"status": "pending", "task_id": "draft_task", "task_output": "a draft of before"},
    "error": {"status": "error", "error": "shut down"},
}


@pytest.mark.row("N34")
@path
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_end_is_believed_only_from_the_connections_current_address(
    path: str, server: FaultServer, connect: Connect, short_minute: float, end: Any
) -> None:
    """A deployment that is taken down may fail what it runs; one that was copied does not know what went on."""
    with FaultServer() as new:
        new.on(POLL, SPEC.running, SPEC.completed)

        def ends(request: Any) -> Any:
            connect(new.url)
            return Reply(body=end)

        server.on(POLL, *[SPEC.running] * 20, ends)
        assert wait(path, timeout=60).kind == COMPLETED
        assert len(new.sent(POLL)) == 2


@pytest.mark.row("N34")
@path
def test_an_outdated_address_reporting_running_forever_traps_no_wait(
    path: str, server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, short_minute: float
) -> None:
    monkeypatch.setattr(watch, "NOW_AND_THEN", 0.3, raising=False)
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)
        server.on(POLL, SPEC.running, lambda request: connect(new.url) or Reply(body=SPEC.running))
        assert wait(path, timeout=60).kind == COMPLETED
        assert new.sent(POLL)


@pytest.mark.row("N34")
@path
def test_a_deadline_passes_only_where_the_connection_points_by_now(
    path: str, server: FaultServer, connect: Connect, short_minute: float
) -> None:
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)
        server.on(POLL, SPEC.running, lambda request: connect(new.url) or Reply(body=SPEC.running))
        assert wait(path, timeout=1.0).kind == COMPLETED
        assert new.sent(POLL)


@pytest.mark.row("N34")
@path
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_end_needs_its_own_lookup_even_within_the_minute(
    path: str, server: FaultServer, connect: Connect, looked_up: list[str], end: Any
) -> None:
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)
        server.on(POLL, SPEC.running, lambda request: connect(new.url) or Reply(body=end))
        assert wait(path).kind == COMPLETED
        assert new.sent(POLL)
    triggers = 2 if path == TRIGGERER else 1  # another once the id is known
    assert looked_up == ["crew_default"] * (triggers + 1)


@pytest.mark.row("N34")
@path
def test_an_end_is_believed_while_connection_lookups_fail(
    path: str, server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, short_minute: float
) -> None:
    def ends(request: Any) -> Any:
        monkeypatch.delenv("AIRFLOW_CONN_CREW_DEFAULT", raising=False)
        return Reply(body=SPEC.completed)

    server.on(POLL, *[SPEC.running] * 20, ends)
    assert wait(path, timeout=60).kind == COMPLETED


@pytest.mark.row("N34")
@path
def test_waits_that_go_on_look_their_connection_up_together(
    path: str,
    server: FaultServer,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    looked_up: list[str],
    short_minute: float,
) -> None:
    monkeypatch.setattr(watch, "NOW_AND_THEN", 0.3, raising=False)
    server.on(POLL, *[SPEC.running] * 60, SPEC.completed)
    began = time.monotonic()
    assert set(all_waits(path)) == {COMPLETED}
    first = 1 if path == TRIGGERER else WAITS
    ends = WAITS  # each of which looks it up before it is believed
    assert 1 <= len(looked_up) - first <= (time.monotonic() - began) / short_minute + 1 + ends


@pytest.mark.row("N34")
def test_a_patient_poll_goes_where_the_connection_points_by_now(
    server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "WHILE_POLLING", 0.0)
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)
        server.on(POLL, lambda request: connect(new.url) or Reply(status=503), SPEC.running)
        assert Poller(CrewHook()).poll_patiently("k-1").state is ExecutionState.COMPLETED


@pytest.mark.row("N34")
def test_an_execution_is_stopped_where_the_connection_points_by_now(server: FaultServer, connect: Connect) -> None:
    async def killed() -> None:
        trigger = CrewStatusTrigger("k-1", poll_interval=0.05, known=True, cancel_on_kill=True)
        waits = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.to_thread(wait_until, lambda: len(server.requests) >= 2, "two polls")
        connect(new.url)
        await trigger.on_kill()
        waits.cancel()
        await asyncio.wait([waits])

    server.on(POLL, SPEC.running)
    with FaultServer() as new:
        new.on("POST /stop/k-1", {"status": "stopped"})
        asyncio.run(asyncio.wait_for(killed(), PATIENCE))
        assert new.sent("POST /stop/k-1")
        assert not server.sent("POST /stop/k-1")


WAITS = 4


def _allow_to_execute() -> None:
    """Airflow 2.11 stores for the main thread only who calls `execute`."""
    with suppress(ImportError):
        from airflow.models.baseoperator import ExecutorSafeguard

        ExecutorSafeguard._sentinel.callers = {}


def all_waits(path: str) -> list[str]:
    if path != TRIGGERER:
        with ThreadPoolExecutor(WAITS, initializer=_allow_to_execute) as threads:
            return list(threads.map(lambda _: wait(path).kind, range(WAITS)))

    async def one() -> str:
        async for event in CrewStatusTrigger("k-1", poll_interval=0.05, known=True).run():
            return event.payload["kind"]
        return ""

    async def together() -> list[str]:
        return await asyncio.gather(*(one() for _ in range(WAITS)))

    return asyncio.run(together())
