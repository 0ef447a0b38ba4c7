"""The fault server and the proxy do what they say: a fault that does not happen proves nothing."""

from __future__ import annotations

import time

import pytest
import requests

from crew_service.local import running_service
from faults.lagging import LaggingProxy
from faults.proxy import KICKOFF, LATE_POSTS, POLL, Fault, FaultProxy, call_of
from faults.server import FaultServer
from faults.wire import RESET, SILENCE, NoReply, Reply, Request
from scripts.stack.waiting import PATIENCE, wait_until


def test_answers_are_given_in_turn_and_the_last_one_repeats() -> None:
    with FaultServer() as server:
        server.on("GET /a", 503, {"status": "running"})
        answers = [requests.get(f"{server.url}/a", timeout=PATIENCE) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [503, 200, 200]
    assert answers[2].json() == {"status": "running"}
    assert len(server.sent("GET /a")) == 3


def test_requests_are_kept_as_they_arrived() -> None:
    with FaultServer() as server:
        requests.post(f"{server.url}/x%2Fy?z", json={"a": 1}, timeout=PATIENCE)
    (request,) = server.requests
    assert (request.method, request.target, request.json) == ("POST", "/x%2Fy?z", {"a": 1})


@pytest.mark.parametrize("end", [RESET, SILENCE])
def test_a_reply_can_stop_in_the_middle(end: str) -> None:
    with FaultServer() as server:
        server.on("GET /a", Reply(body=b"0123456789", stop_after=4, end=end))
        with pytest.raises(requests.RequestException):
            _ = requests.get(f"{server.url}/a", timeout=0.5).content


def test_a_request_can_be_read_and_left_without_an_answer() -> None:
    with FaultServer() as server:
        server.on("GET /a", NoReply(RESET))
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{server.url}/a", timeout=PATIENCE)
    assert len(server.sent("GET /a")) == 1


def test_a_connection_can_be_reset_before_anything_is_read() -> None:
    with FaultServer() as server:
        server.reset_at_connect = 1
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{server.url}/a", timeout=PATIENCE)
    assert server.requests == []


def test_a_port_refuses_until_it_listens() -> None:
    with FaultServer(listening=False) as server:
        server.on("GET /a", 200)
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{server.url}/a", timeout=PATIENCE)
        server.listen()
        assert requests.get(f"{server.url}/a", timeout=PATIENCE).ok


def test_a_body_can_drip() -> None:
    with FaultServer() as server:
        server.on("GET /a", Reply(body=b"abcd", drip=0.05))
        began = time.monotonic()
        assert requests.get(f"{server.url}/a", timeout=PATIENCE).content == b"abcd"
    assert time.monotonic() - began >= 0.2


def test_the_proxy_forwards_and_drops_as_configured_and_reports_it() -> None:
    scenario = {"tasks": [{"id": "only_task", "agent": "Writer", "output": "done"}]}
    lost = Fault("N11", "answer lost", KICKOFF, lambda forward, random: (forward(), NoReply(RESET))[1])
    with running_service(scenario=scenario) as service, FaultProxy(service.url, seed=1, rate=1, faults=[lost]) as proxy:
        headers = {"Authorization": f"Bearer {service.token}"}
        with pytest.raises(requests.ConnectionError):
            requests.post(f"{proxy.url}/kickoff", json={"inputs": {}}, headers=headers, timeout=PATIENCE)
        proxy.stop_faults()
        answer = requests.post(f"{proxy.url}/kickoff", json={"inputs": {}}, headers=headers, timeout=PATIENCE)
        assert requests.get(f"{proxy.url}/status/{answer.json()['kickoff_id']}", headers=headers, timeout=PATIENCE).ok
    assert proxy.forwarded == {KICKOFF: 2, POLL: 1}
    assert [(each.row, each.reached) for each in proxy.injected] == [("N11", True)]
    assert "| N11 | kickoff | answer lost | 1 |" in proxy.table()


@pytest.mark.parametrize(
    ("method", "target", "call"),
    [
        ("GET", "/base/status/x", "look"),
        ("GET", "/base/statuses?ids=x,y", "look"),
        ("POST", "/kickoff", "kickoff"),
        ("POST", "/stop/x", "stop"),
        ("GET", "/inputs", "other"),
    ],
)
def test_calls_are_distinguished(method: str, target: str, call: str) -> None:
    assert call_of(Request(method, target, {}, b"", 0.0)) == call


def test_a_late_post_gets_a_504_and_arrives_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.proxy.LATE", (0.2, 0.2))
    with FaultServer() as service, FaultProxy(service.url, seed=1, rate=1, faults=LATE_POSTS) as proxy:
        service.on("POST /resume", {"kickoff_id": "k-1"})
        assert requests.post(f"{proxy.url}/resume", json={}, timeout=PATIENCE).status_code == 504
        assert service.sent("POST /resume") == []
        wait_until(lambda: service.sent("POST /resume"), "the late request", pause=0.02)
        assert len(service.sent("POST /resume")) == 1


def test_status_lags_behind_a_resume_and_drafts_are_sometimes_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.lagging.LAG", (1.0, 1.0))
    monkeypatch.setattr("faults.lagging.SHARE", 1.0)
    with FaultServer() as service, LaggingProxy(service.url, seed=1, rate=0.5, faults=()) as proxy:
        service.on("GET /status/e-1", {"status": "pending"})
        service.on("POST /resume", {"kickoff_id": "e-1"})
        seen = [requests.get(f"{proxy.url}/status/e-1", timeout=PATIENCE).status_code for _ in range(20)]
        assert set(seen) == {200, 404}
        assert requests.post(f"{proxy.url}/resume", json={"execution_id": "e-1"}, timeout=PATIENCE).ok
        service.on("GET /status/e-1", {"status": "running"})
        proxy.stop_faults()
        shown = requests.get(f"{proxy.url}/status/e-1", timeout=PATIENCE)
        assert shown.json() == {"status": "pending"}
        found = {name: {"code": 200, "body": {"status": "running"}} for name in ("e-1", "e-2")}
        service.on("GET /statuses?ids=e-1,e-2", {"statuses": found})
        of_many = requests.get(f"{proxy.url}/statuses?ids=e-1,e-2", timeout=PATIENCE).json()["statuses"]
        assert {name: each["body"]["status"] for name, each in of_many.items()} == {"e-1": "pending", "e-2": "running"}
        wait_until(
            lambda: requests.get(f"{proxy.url}/status/e-1", timeout=PATIENCE).json() == {"status": "running"},
            "the status after the resume",
            pause=0.02,
        )
    assert {each.row for each in proxy.injected} == {"N21", "N23"}
