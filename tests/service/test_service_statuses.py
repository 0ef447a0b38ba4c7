"""`GET /statuses`: for each id what a request of its own would have been answered."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from crew_client import GATED, SLOW, Serve

DIALECTS = pytest.mark.parametrize("dialect", ["spec", "live"])


@DIALECTS
def test_each_id_gets_what_its_own_request_would_have_got(serve: Serve, dialect: str) -> None:
    client = serve(GATED, dialect=dialect)
    waiting = client.kickoff()
    client.until(waiting, {"spec": "pending", "live": "NOT FOUND"}[dialect])
    ids = [waiting, str(uuid4()), "no-uuid"]
    single = {each: client.get(f"/status/{each}") for each in ids}
    together = client.get("/statuses", params={"ids": ",".join(ids)})
    assert together.status_code == 200
    expected = {each: {"code": answer.status_code, "body": answer.json()} for each, answer in single.items()}
    expected[waiting]["usage"] = json.loads(single[waiting].headers["Crew-Usage"])
    assert together.json() == {"statuses": expected}
    assert {answer.headers["Crew-Batch-Status"] for answer in single.values()} == {"/statuses"}


@DIALECTS
def test_executions_of_other_users_read_as_unknown(serve: Serve, dialect: str) -> None:
    client = serve(SLOW, dialect=dialect, user_tokens=[("ann", "ann-token"), ("bob", "bob-token")])
    ann, bob = client.holding("ann-token"), client.holding("bob-token")
    mine = ann.kickoff()
    unknown = bob.get(f"/status/{uuid4()}")
    seen = bob.get("/statuses", params={"ids": mine}).json()["statuses"][mine]
    assert seen == {"code": unknown.status_code, "body": unknown.json()}
    assert client.holding("nobody").get("/statuses", params={"ids": mine}).status_code == 401


@DIALECTS
def test_an_oversized_status_is_left_to_its_own_request(serve: Serve, dialect: str) -> None:
    long = {"tasks": [{"id": "only_task", "agent": "Writer", "seconds": 0.0, "output": "x" * 40_000}]}
    client = serve(long, dialect=dialect)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, {"spec": "completed", "live": "SUCCESS"}[dialect])
    assert client.get("/statuses", params={"ids": kickoff_id}).json() == {"statuses": {kickoff_id: None}}


@DIALECTS
@pytest.mark.parametrize("query", ["", "ids=", "ids=a,,b", "ids=a&ids=b", "ids=" + ",".join(map(str, range(201)))])
def test_ids_that_cannot_be_read_are_refused(serve: Serve, dialect: str, query: str) -> None:
    answer = serve(dialect=dialect).get(f"/statuses?{query}")
    assert answer.status_code == {"spec": 400, "live": 422}[dialect]
    assert answer.json()["detail"]
