"""Rows S2 and S4: many at once; and the Idempotency-Key, which makes a repetition harmless."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crew_client import GATED, PLAIN, Client, Serve, eventually
from databases import put
from sqlalchemy import insert

from crew_service.local import running_service
from crew_service.storage import claims
from crew_service.storage.database import Database
from crew_service.storage.states import State
from crew_service.storage.tables import executions
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Start all calls at the same moment."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.mark.row("S2")
def test_of_many_concurrent_resumes_one_wins_and_others_get_400(serve: Serve) -> None:
    client = serve()
    for _ in range(5):
        kickoff_id = client.kickoff()
        client.until(kickoff_id, "pending")
        rivals = [client.holding(client.token) for _ in range(8)]
        answers = at_once([partial(rival.resume, kickoff_id) for rival in rivals])
        codes = [answer.status_code for answer in answers]
        assert Counter(codes) == {200: 1, 400: 7}
        client.until(kickoff_id, "completed")


@pytest.mark.row("S2")
def test_a_concurrent_stop_and_resume_leave_one_clear_outcome(serve: Serve) -> None:
    client = serve()
    for _ in range(5):
        kickoff_id = client.kickoff()
        client.until(kickoff_id, "pending")
        other = client.holding(client.token)
        resumed, stopped = at_once([partial(client.resume, kickoff_id), partial(other.post, f"/stop/{kickoff_id}")])
        word = "completed" if stopped.status_code == 400 else "error"
        client.until(kickoff_id, word)
        assert (resumed.status_code, stopped.status_code, word) in [
            (200, 200, "error"),
            (400, 200, "error"),
            (200, 400, "completed"),
        ]


@pytest.mark.slow  # 200 executions
@pytest.mark.row("S4")
def test_200_concurrent_kickoffs_are_all_run_by_a_bounded_pool(serve: Serve) -> None:
    scenario = {"inputs": ["topic"], "tasks": [{"id": "t", "seconds": 0.05, "output": "All on {topic}"}]}
    client = serve(scenario, workers=8)
    clients = [client.holding(client.token) for _ in range(200)]
    ids = at_once([lambda one=one, n=n: one.kickoff(str(n)) for n, one in enumerate(clients)])
    busy = client.get("/metrics").text.split("\ncrew_service_workers_busy ", 1)[1].split("\n", 1)[0]
    assert float(busy) <= 8
    for number, kickoff_id in enumerate(ids):
        assert client.until(kickoff_id, "completed")["result"]["output"] == f"All on {number}"


KEY = {"Idempotency-Key": "the same"}


def started(client: Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("crew_service_executions{"))


def test_one_key_and_body_start_one_execution_even_concurrently(serve: Serve) -> None:
    client = serve(PLAIN)
    rivals = [client.holding(client.token) for _ in range(8)]
    body = {"inputs": {"topic": "AI"}, "meta": {"a": 1}}
    answers = at_once([lambda one=one: one.post("/kickoff", body, headers=KEY) for one in rivals])
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert started(client) == 1


def test_another_body_under_one_key_gets_422_and_starts_nothing(serve: Serve) -> None:
    client = serve(PLAIN)
    client.post("/kickoff", {"inputs": {"topic": "AI"}}, headers=KEY)
    answer = client.post("/kickoff", {"inputs": {"topic": "other"}}, headers=KEY)
    assert (answer.status_code, "Idempotency-Key" in answer.json()["detail"]) == (422, True)
    assert started(client) == 1


def test_a_refused_request_keeps_no_key(serve: Serve) -> None:
    client = serve(PLAIN)
    assert client.post("/kickoff", {"inputs": {}}, headers=KEY).status_code == 422
    assert client.post("/kickoff", {"inputs": {"topic": "AI"}}, headers=KEY).status_code == 200


def test_keys_are_per_token_and_endpoint_and_survive_a_restart(tmp_path: Path) -> None:
    options: dict[str, Any] = {"user_tokens": [("ann", "ann-token")], "token": "org-token", "db": tmp_path / "kept.db"}
    body = {"inputs": {"topic": "AI"}}
    with running_service(scenario=GATED, **options) as service:
        client = Client(service.url, service.token)
        mine = client.post("/kickoff", body, headers=KEY).json()
        anns = client.holding("ann-token").post("/kickoff", body, headers=KEY).json()
        assert mine != anns
        client.until(mine["kickoff_id"], "pending")
        decision = {
            "execution_id": mine["kickoff_id"],
            "task_id": "draft_task",
            "human_feedback": "",
            "is_approve": True,
        }
        resumed = client.post("/resume", decision, headers=KEY)
        assert resumed.json()["status"] == "resumed"
        client.until(mine["kickoff_id"], "completed")
    with running_service(scenario=GATED, **options) as service:
        again = Client(service.url, service.token)
        assert again.post("/resume", decision, headers=KEY).json() == resumed.json()
        assert again.post("/kickoff", body, headers=KEY).json() == mine


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_that_cannot_be_kept_is_a_400(serve: Serve, key: str) -> None:
    client = serve(PLAIN)
    answer = client.post("/kickoff", {"inputs": {"topic": "AI"}}, headers={"Idempotency-Key": key})
    assert (answer.status_code, started(client)) == (400, 0)


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_a_known_key_is_answered_whatever_the_crew_now_requires(tmp_path: Path, dialect: str) -> None:
    def served(crew: dict[str, Any]) -> Any:
        return running_service(scenario=crew, db=tmp_path / "service.db", dialect=dialect)

    ask = {"inputs": {"topic": "AI"}}
    with served(GATED) as service:
        client = Client(service.url, service.token)
        started = client.post("/kickoff", ask, headers=KEY).json()
        [listed] = eventually(lambda: client.get("/executions?state=pending").json()["executions"], "the question")
        answer = {"executionId": listed["execution_id"], "taskId": listed["task_id"]}
        answer |= {"humanFeedback": "Approved.", "isApprove": True}
        resumed = client.post("/resume", answer, headers=KEY).json()
    with served({**GATED, "inputs": ["topic", "audience"]}) as service:
        client = Client(service.url, service.token)
        again = client.post("/kickoff", ask, headers=KEY)
        assert (again.status_code, again.json()) == (200, started)
        assert again.headers["Crew-View"].endswith(started["kickoff_id"])
        again = client.post("/resume", answer, headers=KEY)
        assert (again.status_code, again.json()) == (200, resumed)
        for path, other in (("/kickoff", {"inputs": {}}), ("/resume", {**answer, "taskId": 1})):
            refused = client.post(path, other, headers=KEY)
            assert (refused.status_code, "Idempotency-Key" in refused.json()["detail"]) == (422, True)
        assert client.post("/kickoff", ask, headers={"Idempotency-Key": "new"}).status_code == 422
        assert len(client.get("/executions").json()["executions"]) == 1


def test_an_owners_few_executions_do_not_wait_behind_anothers_many(database: str) -> None:
    with closing(Database(database)) as opened, opened.writing() as connection:
        now = opened.now()
        claims.register(connection, "p", host="here", alone=False, now=now)
        owners: dict[str, str | None] = {**{f"mallory-{n}": "mallory" for n in range(3_000)}, "o1": None, "o2": None}
        owners |= {"ann-1": "ann", "bob-1": "bob", "ann-2": "ann", "late": "zoe"}
        times = {"created_at": now, "updated_at": now}
        rows = [
            {**times, "id": each, "kickoff_id": each, "owner": owner, "state": "queued", "inputs": {}, "asked": []}
            | {"due_at": now - 60 + place / 100 if owner != "zoe" else now + 1}
            for place, (each, owner) in enumerate(owners.items())
        ]
        connection.execute(insert(executions), rows)

        def claimed(limit: int) -> set[str]:
            return set(claims.claim_due(connection, "p", "", now=now, limit=limit) or [])

        assert claimed(2) == {"mallory-0", "o1"}
        assert claimed(2) == {"ann-1", "bob-1"}
        assert claimed(4) == {"mallory-1", "mallory-2", "o2", "ann-2"}
        assert claims.claim_due(connection, "p", "other", now=now, limit=4) == []


QUEUE = {
    "could not begin": {"state": State.RUNNING, "claimed_by": "p", "segment": 1, "due_at": 1.0},
    "interrupted": {"state": State.RUNNING, "claimed_by": "p", "segment": 1, "writes": 1, "due_at": 2.0},
    "queued": {"state": State.QUEUED, "due_at": 3.0},
    # Interrupted before an earlier release ran it, which does not know the column, until a person was asked.
    "answered": {"state": State.QUEUED, "segment": 2, "due_at": 5.0, "interrupted_at": 4.0},
}


@pytest.mark.parametrize("leaves", [False, True])
def test_interrupted_executions_go_first_and_unbegun_ones_wait_their_turn(database: str, leaves: bool) -> None:
    with closing(Database(database)) as opened:
        with opened.writing() as connection:
            for each in ("p", "other"):
                claims.register(connection, each, host="here", alone=False, now=0.0)
        for name, values in QUEUE.items():
            put(opened, name, **values)
        with opened.writing() as connection:
            if leaves:
                claims.unregister(connection, "p", now=9.0)
            else:
                claims.requeue_lost(connection, "p", "", [], now=9.0)
        order = []
        for _ in range(5):
            with opened.writing() as connection:
                order += claims.claim_due(connection, "other", "", now=9.0, limit=1) or []
        assert order == ["interrupted", "queued", "answered", "could not begin"]
