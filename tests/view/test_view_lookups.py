"""How often a deployment is asked, however many people look, and what they see while it does not answer."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import wait
from dataclasses import dataclass

import pytest
from fastapi.testclient import TestClient
from faults.server import FaultServer
from faults.wire import Reply
from viewed_run import Run, about

from airflow_crew_provider.view.execution import Seen, Target, of_dag
from airflow_crew_provider.view.lookups import Made, Shared
from scripts.stack.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.since_airflow("3.1")
RUNNING = {"status": "running", "current_task": "write", "progress": {"completed_tasks": 1, "total_tasks": 3}}
VIEWERS = 200


@dataclass(frozen=True)
class Number:
    value: int
    is_final: bool = False


class Counting:
    """Looks up how often it was called, once it may go on."""

    def __init__(self, last: int = 1_000_000) -> None:
        self.calls, self.last = 0, last
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, key: str, before: Number | None) -> Number:
        self.may_go_on.wait(PATIENCE)
        self.calls += 1
        return Number(self.calls, self.calls >= self.last)


def shared(look_up: Counting, most: int = 10) -> Shared[str, Number]:
    return Shared(look_up, pause=2.0, threads=2, most=most)


def settled(values: Shared[str, Number], key: str, now: float) -> Number | None:
    _, pending = values.ask(key, now)
    if pending is not None:
        wait([pending], PATIENCE)
    return values.peek(key)


def test_200_viewers_make_one_look_up_in_two_seconds() -> None:
    look_up = Counting()
    values = shared(look_up)
    for tenth in range(100):  # ten seconds
        for _ in range(VIEWERS):
            settled(values, "a", 1000 + tenth / 10)
    assert look_up.calls == 5


def test_200_simultaneous_viewers_share_one_lookup_in_progress() -> None:
    look_up = Counting()
    look_up.may_go_on.clear()
    values = shared(look_up)
    threads = [threading.Thread(target=values.ask, args=("a", 1000.0 + number)) for number in range(VIEWERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    look_up.may_go_on.set()
    wait_until(lambda: values.peek("a") is not None, "the look-up")
    assert look_up.calls == 1


def test_what_is_over_is_not_looked_up_again() -> None:
    look_up = Counting(last=2)
    values = shared(look_up)
    for second in range(0, 100, 3):
        settled(values, "a", float(second))
    assert look_up.calls == 2


def test_a_hanging_lookup_delays_no_viewer_once_something_is_known() -> None:
    look_up = Counting()
    values = shared(look_up)
    settled(values, "a", 0.0)
    look_up.may_go_on.clear()
    began = time.monotonic()
    assert asyncio.run(values.latest("a", 10.0)) == Number(1)
    assert time.monotonic() - began < PATIENCE
    look_up.may_go_on.set()


def test_the_cache_stays_within_its_limit_but_keeps_fresh_entries() -> None:
    look_up = Counting()
    values = shared(look_up, most=3)
    for number in range(10):
        settled(values, str(number), number * 10.0)
    assert [values.peek(str(number)) is not None for number in range(10)] == [False] * 7 + [True] * 3
    for number in range(10, 20):
        settled(values, str(number), 100.0)
    assert all(values.peek(str(number)) for number in range(10, 20))  # else they would be looked up again too early


def test_a_failed_lookup_is_retried_after_the_pause() -> None:
    calls = []

    def look_up(key: str, before: Number | None) -> Number:
        calls.append(key)
        if len(calls) == 1:
            raise OSError("the database is away")
        return Number(2)

    values: Shared[str, Number] = Shared(look_up, pause=2.0, threads=1, most=5)
    assert settled(values, "a", 0.0) is None
    assert settled(values, "a", 1.0) is None
    assert settled(values, "a", 2.0) == Number(2)


@pytest.mark.row("A30")
def test_hanging_lookups_of_one_owner_leave_threads_for_others() -> None:
    look_up, hung = Counting(), threading.Event()

    def look_up_of(key: str, before: Number | None) -> Number:
        if key.startswith("hung"):
            hung.wait(PATIENCE)
        return look_up(key, before)

    values: Shared[str, Number] = Shared(
        look_up_of, pause=2.0, threads=4, most=50, owner=lambda key: key.partition(" ")[0], each=2
    )
    pending = [values.ask(f"hung {number}", 0.0)[1] for number in range(20)]
    assert settled(values, "quick 1", 0.0) == Number(1)
    assert not [each for each in pending if each is None or each.done()]
    hung.set()
    wait([each for each in pending if each], PATIENCE)
    assert look_up.calls == 21


@pytest.mark.row("A30")
def test_a_page_of_unchanged_facts_is_made_only_once() -> None:
    made: list[int] = []
    all_ask = threading.Event()

    def make() -> int:
        assert all_ask.wait(PATIENCE)
        made.append(1)
        return len(made)

    async def look() -> list[int]:
        pages: Made[str, int] = Made(threads=2, most=2)
        asking = [asyncio.ensure_future(pages.of("a", {"state": "running"}, make)) for _ in range(VIEWERS)]
        await asyncio.sleep(0)  # each has begun
        all_ask.set()
        first = await asyncio.gather(*asking)
        again = [await pages.of("a", {"state": state}, make) for state in ("running", "completed", "completed")]
        return [*set(first), *again]

    assert asyncio.run(look()) == [1, 1, 2, 2]


@pytest.mark.row("A31")
def test_lookups_are_shared_only_for_the_same_polled_target() -> None:
    assert Target("c", "e", "k-1") != Target("c", "e", "k-2")
    assert Target("c", "e", "k", None) != Target("d", "e", "k", None)


def test_200_people_who_open_a_page_make_one_request(
    client: TestClient, dag_run: Run, server: FaultServer, connect: object
) -> None:
    connect(server.url)  # type: ignore[operator]
    server.on("GET /status/k-1", RUNNING)
    dag_run.task("kickoff", about())
    began = time.monotonic()
    pages = [client.get(dag_run.page("kickoff")) for _ in range(VIEWERS)]
    allowed = 1 + int((time.monotonic() - began) / 0.3)  # the pause of `app`
    assert {each.status_code for each in pages} == {200}
    assert len(server.sent("GET /status/k-1")) <= allowed


def test_a_fragment_is_sent_once_then_304_while_unchanged(
    client: TestClient, dag_run: Run, server: FaultServer, connect: object
) -> None:
    connect(server.url)  # type: ignore[operator]
    server.on("GET /status/k-1", {"status": "completed", "result": {"output": "Done", "tasks": []}})
    dag_run.task("kickoff", about())
    first = client.get(dag_run.page("kickoff", end="/fragment"))
    assert (first.status_code, first.headers["Crew-Live"]) == (200, "no")
    again = client.get(dag_run.page("kickoff", end="/fragment"), headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_down_deployment_is_reported_with_the_last_known_facts(
    client: TestClient, dag_run: Run, server: FaultServer, connect: object
) -> None:
    connect(server.url)  # type: ignore[operator]
    server.on("GET /status/k-1", RUNNING, Reply(status=503, body={}))
    dag_run.task("kickoff", about())
    assert "does not answer" not in client.get(dag_run.page("kickoff")).text

    def says_so() -> bool:
        text = client.get(dag_run.page("kickoff", end="/fragment")).text
        return "The lookup failed." in text and "1 of 3" in text

    wait_until(says_so, "the page says that the deployment is down")


def test_a_connection_that_is_missing_is_named(client: TestClient, dag_run: Run) -> None:
    dag_run.task("kickoff", {**about(), "crew_conn_id": "not_there"})
    answer = client.get(dag_run.page("kickoff"))
    assert (answer.status_code, "not_there" in answer.text) == (200, True)


@pytest.mark.parametrize("code", [404, 405, 501])
def test_a_deployment_without_details_is_asked_for_its_status_instead(
    server: FaultServer, connect: object, code: int
) -> None:
    from airflow_crew_provider.view import deployment

    connect(server.url)  # type: ignore[operator]
    server.on("GET /executions/k-1", Reply(status=code, body={}))
    server.on("GET /status/k-1", RUNNING)
    target = Target("crew_default", "k-1", "k-1", "/view?id=k-1")
    seen: Seen | None = None
    for _ in range(5):
        before = len(server.requests)
        seen = deployment.look_up(target, seen)
        assert len(server.requests) == before + 1
    assert [each.target.split("/")[1] for each in server.requests] == ["executions", "status"] * 2 + ["executions"]
    assert seen
    assert seen.found
    assert (seen.found["state"], seen.problem) == ("running", "")
    assert seen.found["unknown"]


@pytest.mark.row("A33")
def test_the_starting_dag_stays_known_when_details_are_refused_later(server: FaultServer, connect: object) -> None:
    from airflow_crew_provider.view import deployment

    connect(server.url)  # type: ignore[operator]
    details = {"state": "running", "meta": {"airflow": {"dag_id": "other"}}}
    server.on("GET /executions/k-1", details, Reply(status=404, body={}))
    server.on("GET /status/k-1", RUNNING)
    seen: Seen | None = None
    for _ in range(4):
        seen = deployment.look_up(Target("crew_default", "k-1", "k-1", "/view?id=k-1"), seen)
        assert seen.found
        shown = of_dag(seen, "mine", is_own=True)
        assert shown
        assert (shown.is_elsewhere, shown.found) == (True, None)
    assert server.sent("GET /status/k-1")
