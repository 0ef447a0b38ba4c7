"""Waits of one triggerer poll together where the service offers it, and each notices nothing of it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from faults.dialects import DIALECTS, PENDING_SPEC, SPEC, Dialect
from faults.server import FaultServer
from faults.wire import RESET, SILENCE, NoReply, Reply
from sampling import sampled
from simulated_airflow import Connect

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.endpoints import Call
from airflow_crew_provider.api.responses import HttpResponse, Mask
from airflow_crew_provider.api.status import USAGE
from airflow_crew_provider.client import asynchronous
from airflow_crew_provider.client.client import Client
from airflow_crew_provider.client.deployment import LARGE_BODY, Deployment
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait.watch import COMPLETED, GAVE_UP, OVER_BUDGET, TIMEOUT
from scripts.stack.waiting import PATIENCE

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
OFFER = {endpoints.BATCH_OFFER: endpoints.STATUSES}
WAITS = 20


def of(request: Any) -> list[str]:
    """Return the ids that a request of many asks for; none of another one."""
    where = urlsplit(request.target)
    return parse_qs(where.query)["ids"][0].split(",") if where.path == endpoints.STATUSES else []


class Service:
    """A service that can do both, whose answers a test may change."""

    def __init__(self, server: FaultServer, monkeypatch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        self.dialect, self.together, self.alone = dialect, 0, 0
        self.statuses: Any = self.usual
        self.status: Any = lambda: Reply(body=self.body, headers=OFFER)
        self.until = 3  # requests of many before the end
        monkeypatch.setattr(server, "_decide", self.decide)

    def decide(self, request: Any) -> Reply:
        ids = of(request)
        if ids:
            self.together += 1
            return self.statuses(ids)
        self.alone += 1
        return self.status()

    @property
    def body(self) -> Any:
        return self.dialect.completed if self.is_over() else self.dialect.running

    def is_over(self) -> bool:
        return self.together >= self.until

    def usual(self, ids: list[str]) -> Reply:
        return Reply(body={"statuses": {each: {"code": 200, "body": self.body} for each in ids}})


@pytest.fixture
def service(server: FaultServer, monkeypatch: pytest.MonkeyPatch, dialect: Dialect) -> Service:
    return Service(server, monkeypatch, dialect)


async def fired(**more: Any) -> list[Any]:
    async def one(number: int) -> Any:
        trigger = CrewStatusTrigger(f"k-{number}", poll_interval=0.3, known=True, **more)
        async for event in trigger.run():
            return event.payload

    return await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(WAITS))), PATIENCE)


def outcomes(**more: Any) -> set[str]:
    return {event["kind"] for event in asyncio.run(fired(**more))}


def test_many_waits_cost_one_request_an_interval(service: Service) -> None:
    assert outcomes() == {COMPLETED}
    # The first poll of each brings the offer, the last one confirms the end; in between one goes alone only if no other
    # falls due in the same moment.
    assert 2 * WAITS <= service.alone < 3 * WAITS
    assert service.together <= 12


def test_many_waits_past_a_question_share_one_request_per_interval(service: Service) -> None:
    service.dialect = replace(SPEC, running=PENDING_SPEC)
    assert outcomes(wait_past_pending=True) == {COMPLETED}
    assert 2 * WAITS <= service.alone < 3 * WAITS


def test_a_service_that_does_not_offer_it_is_not_asked(
    service: Service, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_decide", lambda request: Reply(body=service.dialect.completed))
    assert outcomes() == {COMPLETED}
    assert not any(of(request) for request in server.requests)


def refused(status: int) -> Reply:
    return Reply(status=status, body={"detail": "The gateway passes the documented paths only"})


TROUBLES: dict[str, Any] = {
    **{str(code): refused(code) for code in (403, 404, 406, 413, 451, 500, 503)},
    "401": Reply(status=401, body={"detail": "Invalid token"}),
    "502": Reply(status=502, body=b"<html>"),
    "elsewhere": Reply(status=302, headers={"Location": "https://login.example.com/"}),
    "login page": Reply(status=302, headers={"Location": "/login"}),
    "asked to wait": Reply(status=429, headers={"Retry-After": "3600"}),
    "html": Reply(body=b"<html>"),
    "empty": Reply(body={}),
    "of nobody": Reply(body={"statuses": {}}),
    "half": Reply(body={"statuses": {"k-1": {"code": 200, "body": {}}}}, stop_after=20, end=RESET),
    "silence": NoReply(SILENCE),
}


@pytest.mark.row("N28")
@pytest.mark.parametrize("dialect", DIALECTS[:1], indirect=True, ids=str)
@pytest.mark.parametrize("trouble", sampled(TROUBLES.values(), 4), ids=TROUBLES)
def test_after_any_trouble_with_many_each_wait_polls_alone(
    service: Service, server: FaultServer, connect: Connect, trouble: Any
) -> None:
    """As behind a gateway that passes the four documented paths; the trouble lasts."""
    connect(server.url, timeout=4)  # silence takes half of it
    service.statuses = lambda ids: trouble
    service.is_over = lambda: service.alone >= 5 * WAITS  # type: ignore[method-assign]
    assert outcomes() == {COMPLETED}
    assert 1 <= service.together <= WAITS / 2  # those on their way already; none again so soon


@pytest.mark.row("N28")
@pytest.mark.parametrize(
    "item",
    [
        {"code": 403, "body": {"detail": "not here"}},
        {"code": 404, "body": {"detail": "unknown to this machine"}},
        {"code": 200, "body": {"status": 5}},
        {"code": 200, "body": {"status": "completed"}},
    ],
    ids=["403", "404", "no word", "no result"],
)
def test_only_the_answer_to_its_own_poll_fails_a_wait(service: Service, item: Any, impatient: None) -> None:
    service.statuses = lambda ids: Reply(body={"statuses": dict.fromkeys(ids, item)})
    service.is_over = lambda: service.alone >= 5 * WAITS  # type: ignore[method-assign]
    assert outcomes() == {COMPLETED}


@pytest.mark.row("N28")
@pytest.mark.parametrize("more", sampled(["failed", "completed", "pending", "used"], 2))
def test_nothing_that_would_end_a_wait_is_believed_among_many(service: Service, more: str) -> None:
    said = {
        "failed": {"body": service.dialect.failed},
        "completed": {"body": service.dialect.completed},
        "pending": {"body": {"status": "pending", "task_id": "t-1", "task_output": "A draft."}},
        "used": {"body": service.dialect.running, "usage": {"total_tokens": 1000}},
    }
    item = {"code": 200, **said[more]}
    service.statuses = lambda ids: Reply(body={"statuses": dict.fromkeys(ids, item)})
    service.is_over = lambda: service.alone >= 5 * WAITS  # type: ignore[method-assign]
    assert outcomes(max_total_tokens=100) == {COMPLETED}
    assert service.alone >= 5 * WAITS
    assert service.together > 1


@pytest.mark.row("N28")
def test_many_are_asked_for_again_after_a_while(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asynchronous, "ALONE", 0.4)
    service.statuses = lambda ids: Reply(status=503) if service.together == 1 else service.usual(ids)
    service.until = 6
    assert outcomes() == {COMPLETED}


def test_a_wait_that_the_answer_leaves_out_polls_by_itself(service: Service) -> None:
    def all_but_one(ids: list[str]) -> Reply:
        found = {each: {"code": 200, "body": service.body} for each in ids if each != "k-1"}
        return Reply(body={"statuses": {**found, "k-1": None}})

    service.statuses = all_but_one
    assert outcomes() == {COMPLETED}
    assert service.alone > WAITS


@pytest.mark.row("N5")
def test_a_refused_batch_token_ends_each_wait_naming_the_connection(service: Service) -> None:
    refused, accepted = Reply(status=401, body={"detail": "Invalid token"}), service.status
    service.statuses = lambda ids: refused
    service.status = lambda: refused if service.together else accepted()
    events = asyncio.run(fired())
    assert {event["kind"] for event in events} == {GAVE_UP}
    assert all("'crew_default'" in event["message"] and "401" in event["message"] for event in events)


@pytest.mark.row("N6")
def test_an_unknown_id_among_many_is_its_own_404(service: Service, dialect: Dialect) -> None:
    def one_unknown(ids: list[str]) -> Reply:
        said = {each: {"code": 200, "body": service.body} for each in ids}
        if "k-1" in ids and service.together < 3:
            said["k-1"] = {"code": 404, "body": {"detail": "Execution not found"}}
        return Reply(body={"statuses": said})

    service.statuses = one_unknown
    assert outcomes() == {COMPLETED}


@pytest.mark.row("N33")
def test_usage_growth_beside_an_unchanged_body_is_seen_in_batches(service: Service) -> None:
    def used() -> dict[str, int]:
        return {"total_tokens": 100 * service.together}

    def growing(ids: list[str]) -> Reply:
        item = {"code": 200, "body": service.dialect.running, "usage": used()}
        return Reply(body={"statuses": dict.fromkeys(ids, item)})

    service.statuses, service.until = growing, 10**6
    service.status = lambda: Reply(body=service.body, headers={**OFFER, USAGE: json.dumps(used())})
    events = asyncio.run(fired(max_total_tokens=250))
    assert {event["kind"] for event in events} == {OVER_BUDGET}
    assert all(event["usage"]["total_tokens"] > 250 for event in events)


@pytest.mark.row("N4")
def test_a_deadline_near_the_timeout_is_kept_by_separate_polling(service: Service) -> None:
    service.until = 10**6
    began = time.monotonic()
    assert outcomes(deadline=time.time() + 1.5) == {TIMEOUT}
    assert time.monotonic() - began < PATIENCE
    assert service.together == 0


@pytest.mark.row("N7")
@pytest.mark.parametrize("dialect", DIALECTS[:1], indirect=True, ids=str)
@pytest.mark.parametrize("size", [10, LARGE_BODY])
def test_a_large_response_for_many_is_read_outside_the_loop(service: Service, server: FaultServer, size: int) -> None:
    where: list[threading.Thread] = []

    def read(answer: HttpResponse, mask: Mask) -> str:
        where.append(threading.current_thread())
        return "read"

    async def poll() -> list[str]:
        client = Client(Deployment(server.url, token="a-bearer-token"))
        calls = [Call("GET", f"/status/k-{number}", read, polled=f"k-{number}") for number in range(2)]
        await client.hold()
        await client.asend(calls[0])  # its response offers combined requests
        where.clear()
        found = await asyncio.gather(*(client.asend(call, suffices=bool) for call in calls))
        await client.release()
        return found

    service.statuses = lambda ids: Reply(
        body={"statuses": {each: {"code": 200, "body": {"x": "x" * size}} for each in ids}}
    )
    assert asyncio.run(poll()) == ["read", "read"]
    assert (service.alone, service.together, len(where)) == (1, 1, 2)
    assert [each is threading.main_thread() for each in where] == [size < LARGE_BODY] * 2
