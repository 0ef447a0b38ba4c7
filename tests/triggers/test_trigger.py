"""The trigger: what is stored of it, what ends it, and that a hundred of them share one session."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from faults.dialects import Dialect
from faults.server import FaultServer
from faults.wire import SILENCE, NoReply, Reply
from simulated_airflow import TOKEN, fire, stored, tell_states

from airflow_crew_provider.client import asynchronous, lookups
from airflow_crew_provider.compat.connections import aget_connection
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait.watch import COMPLETED, GAVE_UP, TIMEOUT
from scripts.stack.waiting import PATIENCE

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
POLL = "GET /status/k-1"


def trigger(**more: Any) -> CrewStatusTrigger:
    return CrewStatusTrigger(**{"kickoff_id": "k-1", "poll_interval": 0.05, "known": True, **more})


def test_what_is_stored_comes_back_the_same() -> None:
    one = trigger(deadline=5.0, started=1.0, wait_past_pending=True, exponential_backoff=True, max_wait=9.0)
    path, kwargs = one.serialize()
    assert path == "airflow_crew_provider.triggers.crew.CrewStatusTrigger"
    assert stored(one).serialize() == (path, kwargs)
    assert stored(one).watch() == one.watch()
    assert json.loads(json.dumps(kwargs)) == kwargs


def test_every_argument_is_stored() -> None:
    import inspect

    arguments = set(inspect.signature(CrewStatusTrigger.__init__).parameters) - {"self"}
    assert set(trigger(max_total_tokens=5, max_cost=0.5, ended=1, ends_at_unknown=True).serialize()[1]) == arguments


@pytest.mark.row("A8")
def test_a_trigger_without_a_budget_is_stored_without_budget_fields() -> None:
    assert not {"max_total_tokens", "max_cost"} & set(trigger().serialize()[1])
    budget = stored(trigger(max_total_tokens=5)).watch().budget
    assert (budget.max_total_tokens, budget.max_cost) == (5, None)


def test_a_trigger_never_stores_or_shows_its_token(
    server: FaultServer, dialect: Dialect, log_text: Callable[[], str]
) -> None:
    async def while_it_waits() -> str:
        one = trigger()
        wait = asyncio.create_task(one.run().__anext__())
        await asked(server, 1)
        shown = repr(one) + repr(one._hook.connection) + json.dumps(one.serialize())
        server.on(POLL, dialect.completed)
        return shown + json.dumps((await wait).payload)

    server.on(POLL, dialect.running)
    shown = asyncio.run(while_it_waits())
    assert {request.token for request in server.requests} == {f"Bearer {TOKEN}"}
    assert "Execution k-1 is running" in (logged := log_text())
    assert TOKEN not in shown + logged


@pytest.mark.row("A3")
def test_a_restart_keeps_the_deadline(server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, dialect.running)
    began = time.time()
    event = fire(trigger(started=began - 60, deadline=began + 0.5))
    assert event["kind"] == TIMEOUT
    assert "after 1 min" in event["message"]
    assert time.time() - began >= 0.5


@pytest.mark.row("A3")
def test_waits_resumed_together_by_a_restart_poll_at_different_times(server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, dialect.completed)

    async def first_look() -> float:
        began = time.monotonic()
        async for event in trigger(poll_interval=1.0, not_before=time.time() - 60).run():
            assert event.payload["kind"] == COMPLETED
        return time.monotonic() - began

    async def all_of_them() -> list[float]:
        return await asyncio.gather(*(first_look() for _ in range(40)))

    looked = sorted(asyncio.run(all_of_them()))
    assert looked[-1] - looked[0] > 0.3


@pytest.mark.row("A6")
@pytest.mark.parametrize("end", [TIMEOUT, GAVE_UP])
def test_an_instantly_ending_wait_fires_after_airflow_noticed_its_deferral(
    server: FaultServer, dialect: Dialect, impatient: None, end: str
) -> None:
    server.on(POLL, dialect.running)
    now = time.time()
    ends = {TIMEOUT: {"deadline": now}, GAVE_UP: {"crew_conn_id": "crew_nowhere"}}
    assert fire(trigger(not_before=now + 1.5, **ends[end]))["kind"] == end
    assert time.time() >= now + 1.5


@pytest.mark.row("N18")
def test_a_permanently_missing_connection_ends_the_wait_as_a_failure(impatient: None) -> None:
    event = fire(trigger(crew_conn_id="crew_nowhere"))
    assert event["kind"] == GAVE_UP
    assert "crew_nowhere" in event["message"]
    assert "may still be active" in event["message"]


def test_a_trigger_sends_only_status_requests(server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, dialect.running, 500, dialect.completed)
    assert fire(trigger())["kind"] == COMPLETED
    assert {request.method for request in server.requests} == {"GET"}


async def many(count: int) -> list[Any]:
    triggers = [trigger() for _ in range(count)]

    async def one(each: CrewStatusTrigger) -> Any:
        try:
            async for event in each.run():
                return event.payload
        finally:
            await each.cleanup()

    return await asyncio.gather(*(one(each) for each in triggers))


def test_a_hundred_triggers_share_one_session_and_finally_close_it(
    server: FaultServer, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    real = asynchronous.aiohttp.ClientSession

    def counted(*args: Any, **more: Any) -> Any:
        made.append(real(*args, **more))
        return made[-1]

    monkeypatch.setattr(asynchronous.aiohttp, "ClientSession", counted)
    server.on(POLL, *[dialect.running] * 150, dialect.completed)
    events = asyncio.run(many(100))
    assert {event["kind"] for event in events} == {COMPLETED}
    assert len(made) == 1
    assert made[0].closed
    assert server.connections <= 100


def test_no_session_or_socket_is_left_behind_in_any_loop(server: FaultServer, dialect: Dialect) -> None:
    async def without_cleanup() -> Any:
        """As `dag.test` does: the first event, a loop of its own, and no cleanup."""
        return (await trigger().run().__anext__()).payload

    server.on(POLL, dialect.running, dialect.completed)
    gc.collect()  # what earlier tests have left behind counts as theirs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert asyncio.run(without_cleanup())["kind"] == COMPLETED
        asyncio.run(many(5))
        gc.collect()
    assert not [each for each in caught if issubclass(each.category, ResourceWarning)]
    assert not asynchronous.sessions._by_loop or all(not here for here in asynchronous.sessions._by_loop.values())


def test_a_cancelled_trigger_releases_its_session_and_others_continue(server: FaultServer, dialect: Dialect) -> None:
    async def play() -> str:
        first, second = trigger(), trigger(kickoff_id="k-2")
        waits = [asyncio.create_task(each.run().__anext__()) for each in (first, second)]
        await asked(server, 2)
        waits[0].cancel()
        await asyncio.gather(waits[0], return_exceptions=True)
        await first.cleanup()
        server.on("GET /status/k-2", dialect.completed)
        return (await waits[1]).payload["kind"]

    server.on(POLL, dialect.running).on("GET /status/k-2", dialect.running)
    assert asyncio.run(asyncio.wait_for(play(), PATIENCE)) == COMPLETED


@pytest.fixture
def rotated_token(server: FaultServer, connect: Any, dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is rotated at the twentieth poll; the execution completes after sixty."""

    def answer(request: Any) -> Any:
        if len(server.requests) == 20:
            connect(server.url, token="the-new-token")
        if len(server.requests) >= 20 and request.token != "Bearer the-new-token":
            return Reply(status=401)
        return Reply(body=dialect.completed if len(server.requests) > 60 else dialect.running)

    monkeypatch.setattr(server, "_decide", answer)


@pytest.mark.row("N5")
def test_a_rotated_token_moves_the_shared_session_of_all_triggers(rotated_token: None) -> None:
    assert {event["kind"] for event in asyncio.run(many(10))} == {COMPLETED}
    assert not any(asynchronous.sessions._by_loop.values())


@pytest.mark.row("N5")
def test_waits_share_lookups_and_refreshes_of_their_connection(
    rotated_token: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []

    async def counted(conn_id: str) -> Any:
        looked_up.append(conn_id)
        return await aget_connection(conn_id)

    monkeypatch.setattr(lookups, "aget_connection", counted)
    assert {event["kind"] for event in asyncio.run(many(10))} == {COMPLETED}
    # At the beginning, after the refusal and before the end: ten waits, which by themselves would look up thirty times.
    assert 3 <= len(looked_up) <= 6


async def asked(server: FaultServer, times: int) -> None:
    while len(server.requests) < times:  # noqa: ASYNC110 - the server lives in other threads
        await asyncio.sleep(0.01)


async def cancelled(one: CrewStatusTrigger, server: FaultServer) -> None:
    wait = asyncio.create_task(one.run().__anext__())
    await asked(server, 1)
    if hasattr(type(one).__mro__[1], "on_kill"):
        await one.on_kill()
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    await one.cleanup()


@pytest.mark.row("A5")
@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
@pytest.mark.parametrize("cancel_on_kill", [False, True])
def test_a_user_ending_the_task_stops_the_execution_if_requested(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, state: str, cancel_on_kill: bool
) -> None:
    server.on(POLL, NoReply(SILENCE)).on("POST /stop/k-1", {"status": "stopped", "kickoffId": "k-1"})
    asyncio.run(cancelled(_with_task(trigger(cancel_on_kill=cancel_on_kill), monkeypatch, state), server))
    assert len(server.sent("POST /stop/k-1")) == int(cancel_on_kill)


@pytest.mark.row("A3", "A5")
@pytest.mark.parametrize("state", ["deferred", "scheduled", "queued", "running", RuntimeError("no answer")])
def test_a_triggerer_that_shuts_down_stops_nothing(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    server.on(POLL, NoReply(SILENCE)).on("POST /stop/k-1", {"status": "stopped"})
    asyncio.run(cancelled(_with_task(trigger(cancel_on_kill=True), monkeypatch, state), server))
    assert server.sent("POST /stop/k-1") == []


async def cancel_twice(task: asyncio.Task[None]) -> None:
    for _ in range(2):
        await asyncio.sleep(0.01)
        task.cancel()


@pytest.mark.row("A5", "A6")
def test_a_trigger_cancelled_repeatedly_ends_after_handling_its_kill(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("POST /stop/k-1", {"status": "stopped", "kickoffId": "k-1"})
    may_tell = threading.Event()
    one = _with_task(trigger(cancel_on_kill=True), monkeypatch, "skipped")
    tell_states(monkeypatch, lambda task: may_tell.wait(PATIENCE) and "skipped")

    async def cancelled_again() -> None:
        handles = asyncio.create_task(asyncio.wait_for(one.on_kill(), PATIENCE))  # as Airflow calls it
        await cancel_twice(handles)  # on Python 3.11, the second time ends `wait_for`, but not the call
        ends = asyncio.create_task(one.cleanup())
        await cancel_twice(ends)
        await asyncio.wait({ends}, timeout=0.1)
        try:
            assert not ends.done()
        finally:
            may_tell.set()
        await ends
        assert len(server.sent("POST /stop/k-1")) == 1
        await asyncio.wait({handles})

    asyncio.run(cancelled_again())


def _with_task(one: CrewStatusTrigger, monkeypatch: pytest.MonkeyPatch, state: Any) -> CrewStatusTrigger:
    """Give the trigger a task whose state Airflow tells so."""

    def tell(task: str) -> str:
        if isinstance(state, Exception):
            raise state
        return state

    tell_states(monkeypatch, tell)
    one.task_instance = SimpleNamespace(dag_id="dag", run_id="run", task_id="wait", map_index=-1)
    return one
