"""Waits of one triggerer poll together where the service offers it, and each notices nothing of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from faults.dialects import Dialect
from faults.server import FaultServer
from faults.wire import Reply

from airflow_crew_provider.core import batch_status
from airflow_crew_provider.core.outcome import COMPLETED, GAVE_UP, TIMEOUT
from airflow_crew_provider.triggers.crew import CrewStatusTrigger

pytestmark = pytest.mark.waits
OFFER = {batch_status.OFFER: batch_status.PATH}
WAITS = 20


def of(request: Any) -> list[str]:
    """Return the ids that a request of many asks for; none of another one."""
    where = urlsplit(request.target)
    return parse_qs(where.query)["ids"][0].split(",") if where.path == batch_status.PATH else []


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

    return await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(WAITS))), 60)


def outcomes(**more: Any) -> set[str]:
    return {event["kind"] for event in asyncio.run(fired(**more))}


def test_many_waits_cost_one_request_an_interval(service: Service) -> None:
    assert outcomes() == {COMPLETED}
    # The first poll of each brings the offer; later one goes alone only if no other falls due in the same moment.
    assert WAITS <= service.alone < 2 * WAITS
    assert service.together <= 12


def test_a_service_that_does_not_offer_it_is_not_asked(
    service: Service, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_decide", lambda request: Reply(body=service.dialect.completed))
    assert outcomes() == {COMPLETED}
    assert not any(of(request) for request in server.requests)


@pytest.mark.parametrize(
    "refusal",
    [Reply(status=404), Reply(status=405), Reply(status=414), Reply(body=b"<html>"), Reply(body=[]), Reply(body={})],
    ids=["404", "405", "414", "html", "list", "empty"],
)
def test_a_refusal_is_believed_and_each_wait_polls_by_itself(
    service: Service, refusal: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(ids: list[str]) -> Reply:
        asked.extend(ids)
        return refusal

    service.statuses = refuse
    monkeypatch.setattr(service, "is_over", lambda: service.alone >= 5 * WAITS)
    assert outcomes() == {COMPLETED}
    assert asked
    assert len(set(asked)) == len(asked)  # another request of many, of other waits, may be on its way already


def test_a_wait_that_the_answer_leaves_out_polls_by_itself(service: Service) -> None:
    def all_but_one(ids: list[str]) -> Reply:
        found = {each: {"code": 200, "body": service.body} for each in ids if each != "k-1"}
        return Reply(body={"statuses": {**found, "k-1": None}})

    service.statuses = all_but_one
    assert outcomes() == {COMPLETED}
    assert service.alone > WAITS


@pytest.mark.row("N1")
@pytest.mark.parametrize("fault", [Reply(status=502, body=b"<html>"), Reply(status=500)], ids=["502", "500"])
def test_n1_a_request_of_many_that_fails_is_a_failed_poll_of_each_and_is_forgiven(
    service: Service, fault: Reply
) -> None:
    service.statuses = lambda ids: fault if service.together <= 2 else service.usual(ids)
    service.until = 6
    assert outcomes() == {COMPLETED}
    assert WAITS <= service.alone < 3 * WAITS  # a failed request of many does not send each by itself


@pytest.mark.row("N5")
def test_n5_a_token_refused_for_many_ends_each_and_names_the_connection(service: Service) -> None:
    refused, accepted = Reply(status=401, body={"detail": "Invalid token"}), service.status
    service.statuses = lambda ids: refused
    service.status = lambda: refused if service.together else accepted()
    events = asyncio.run(fired())
    assert {event["kind"] for event in events} == {GAVE_UP}
    assert all("'crew_default'" in event["message"] and "401" in event["message"] for event in events)


@pytest.mark.row("N6")
def test_n6_an_id_that_is_unknown_among_many_is_a_404_of_its_own(service: Service, dialect: Dialect) -> None:
    def one_unknown(ids: list[str]) -> Reply:
        said = {each: {"code": 200, "body": service.body} for each in ids}
        if "k-1" in ids and service.together < 3:
            said["k-1"] = {"code": 404, "body": {"detail": "Execution not found"}}
        return Reply(body={"statuses": said})

    service.statuses = one_unknown
    assert outcomes() == {COMPLETED}


@pytest.mark.row("N4")
def test_n4_a_deadline_near_the_timeout_is_kept_by_a_poll_of_its_own(service: Service) -> None:
    service.until = 10**6
    began = time.monotonic()
    assert outcomes(deadline=time.time() + 1.5) == {TIMEOUT}
    assert time.monotonic() - began < 20
    assert service.together == 0
