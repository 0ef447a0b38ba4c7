"""`GET /executions/{id}`: everything that is known of one execution, bounded, and to whom it is told."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
from crew_client import GATED, PLAIN, SLOW, Client, Serve, eventually, waits_for_lock
from databases import sqlite_sample
from sampling import sampled
from sqlalchemy import create_engine, text

from crew_service.engine.crew import Completed, Job, PendingReview, Report, TaskDone
from crew_service.engine.details import LARGEST, fitted
from crew_service.engine.retention import FORGET
from crew_service.local import running_service
from crew_service.prices import Price, Prices
from crew_service.scripted_crew import ScriptedCrew
from crew_service.storage import views
from crew_service.storage.database import Database
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits
DIALECTS = pytest.mark.parametrize("dialect", ["spec", "live"])
FIELDS = [
    *("execution_id", "kickoff_ids", "crew", "dialect", "state", "inputs", "meta", "created_at", "started_at"),
    *(
        "ended_at",
        "work_seconds",
        "held_until",
        "usage",
        "continued_from",
        "chain_usage",
        "error",
        "output",
        "output_json",
    ),
    *("tasks", "rounds", "files", "view", "left_out"),
]
ROUND_FIELDS = [
    *("number", "task_id", "asked_at", "question", "outcomes", "draft", "output_sha256", "decided_at"),
    *("is_approve", "outcome", "human_feedback", "edited", "ask", "by"),
]
TASK_FIELDS = ["task_id", "name", "agent", "state", "started_at", "seconds", "output", "usage", "steps"]
USER = ("ann", "anns-token-of-20-letters")


def details(client: Client, some_id: str) -> dict[str, Any]:
    answer = client.get(f"/executions/{some_id}")
    assert answer.status_code == 200, answer.text
    assert len(answer.content) <= LARGEST
    document = client.get("/openapi.json").json()
    schema = document["paths"]["/executions/{id}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
    return answer.json()


def until(client: Client, some_id: str, state: str) -> dict[str, Any]:
    return eventually(lambda: (found := details(client, some_id))["state"] == state and found, state)


def sha256(draft: str) -> str:
    return hashlib.sha256(draft.encode()).hexdigest()


def test_an_execution_is_told_whole_with_rounds_and_who_decided(serve: Serve) -> None:
    client = serve(user_tokens=[USER])
    ann = client.holding(USER[1])
    kickoff_id = ann.kickoff(meta={"order": 7})
    waiting = until(ann, kickoff_id, "pending")
    assert [task["state"] for task in waiting["tasks"]] == ["completed", "pending", "not_started"]
    assert waiting["rounds"][0]["draft"] == "Draft 1 on AI"
    assert waiting["rounds"][0]["decided_at"] is None
    client.resume(kickoff_id, approve=False, feedback="shorter")
    eventually(lambda: len(details(client, kickoff_id)["rounds"]) == 2, "the second round")
    draft = details(client, kickoff_id)["rounds"][1]["draft"]
    assert draft == "Draft 2 on AI, after: shorter"
    ann.resume(kickoff_id, edited_output={"text": "My own", "output_sha256": sha256(draft)}, feedback="so")
    found = until(client, kickoff_id, "completed")
    assert list(found) == FIELDS
    assert all(list(task) == TASK_FIELDS for task in found["tasks"])
    assert all(list(each) == ROUND_FIELDS for each in found["rounds"])
    assert found["execution_id"] == kickoff_id
    assert (found["kickoff_ids"], found["crew"], found["dialect"]) == ([kickoff_id], "", "spec")
    assert (found["inputs"], found["meta"]) == ({"topic": "AI"}, {"order": 7})
    assert found["created_at"] <= found["started_at"] <= found["tasks"][0]["started_at"] <= found["ended_at"]
    assert (found["output_json"], found["error"], found["left_out"]) == ({"title": "All on AI"}, None, [])
    assert found["view"] == f"/view?id={kickoff_id}"
    assert [(task["task_id"], task["agent"], task["output"]) for task in found["tasks"]] == [
        ("research_task", "Researcher", "Notes on AI"),
        ("draft_task", "Writer", "My own"),
        ("publish_task", "Editor", '{"title": "All on AI"}'),
    ]
    first, second = found["rounds"]
    assert (first["number"], first["task_id"], first["output_sha256"]) == (1, "draft_task", sha256("Draft 1 on AI"))
    assert (first["is_approve"], first["human_feedback"], first["edited"]) == (False, "shorter", False)
    assert (first["by"], second["by"]) == ("organization", "user:ann")
    assert (second["is_approve"], second["human_feedback"], second["edited"]) == (True, "so", True)
    assert first["asked_at"] < first["decided_at"] < second["asked_at"] < second["decided_at"]


def test_any_id_that_was_polled_finds_it(serve: Serve) -> None:
    client = serve(dialect="live")
    first = client.kickoff()
    ids = [first]
    for feedback in ("shorter", "funnier", "Approved."):
        waiting = until(client, ids[-1], "pending")
        body = {"executionId": first, "taskId": waiting["tasks"][1]["task_id"], "humanFeedback": feedback}
        listed = client.get("/executions").json()["executions"][0]
        ids.append(client.post("/resume", {**body, "taskId": listed["task_id"]}).json()["kickoff_id"])
    for each in ids:
        assert until(client, each, "completed")["kickoff_ids"] == ids
    assert len(set(ids)) == 4
    assert [each["is_approve"] for each in details(client, first)["rounds"]] == [False, False, True]


@DIALECTS
def test_exactly_the_readers_of_a_status_may_read_the_details(serve: Serve, dialect: str) -> None:
    others = ("bob", "bobs-token-of-20-letters")
    client = serve(user_tokens=[USER, others], dialect=dialect)
    kickoff_id = client.holding(USER[1]).kickoff()
    etag = client.get(f"/executions/{kickoff_id}").headers["ETag"]
    assert client.holding(USER[1]).get(f"/executions/{kickoff_id}").status_code == 200
    for known in (etag, "*", f"W/{etag}"):
        refused = client.holding(others[1]).get(f"/executions/{kickoff_id}", headers={"If-None-Match": known})
        assert (refused.status_code, refused.json()) == (404, {"detail": "Execution not found"})
        assert "ETag" not in refused.headers
    assert client.holding("nobody").get(f"/executions/{kickoff_id}").status_code == 401


@pytest.mark.parametrize(
    "some_id", ["x", "%00", "00000000-0000-4000-8000-000000000000", "..%2F..", "\N{SNOWMAN}", "x" * 5000]
)
def test_an_unknown_id_is_not_found(serve: Serve, some_id: str) -> None:
    answer = serve().get(f"/executions/{some_id}")
    assert answer.status_code == 404
    assert "detail" in answer.json()


def test_each_of_several_crews_tells_its_own(serve: Serve, tmp_path: Path) -> None:
    with running_service(scenario=GATED, db=tmp_path / "x.db") as one:
        client = Client(one.url, one.token)
        kickoff_id = client.kickoff()
        until(client, kickoff_id, "pending")
    with create_engine(f"sqlite:///{tmp_path}/x.db").begin() as connection:
        connection.execute(text("UPDATE executions SET crew = 'another'"))
    with running_service(scenario=GATED, db=tmp_path / "x.db") as one:
        assert Client(one.url, one.token).get(f"/executions/{kickoff_id}").status_code == 404


def test_the_etag_stands_still_between_events_and_changes_with_each(serve: Serve) -> None:
    client = serve(
        {"inputs": ["topic"], "tasks": [{"id": "first", "tokens": 5}, {**GATED["tasks"][1], "seconds": 0.3}]}
    )
    kickoff_id = client.kickoff()

    def answer(known: str | None = None) -> requests.Response:
        return client.get(f"/executions/{kickoff_id}", headers={"If-None-Match": known} if known else {})

    until(client, kickoff_id, "pending")
    waiting = answer()
    unchanged = answer(f'"other", {waiting.headers["ETag"]}')
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert unchanged.headers["ETag"] == waiting.headers["ETag"]
    assert answer().content == waiting.content
    client.resume(kickoff_id)
    assert answer(waiting.headers["ETag"]).status_code == 200
    until(client, kickoff_id, "completed")
    over = answer()
    assert over.headers["ETag"] != waiting.headers["ETag"]
    assert client.session.head(f"{client.url}/executions/{kickoff_id}", timeout=PATIENCE).content == b""


def test_a_running_task_changes_nothing_while_it_works(serve: Serve) -> None:
    client = serve(SLOW)
    kickoff_id = client.kickoff()
    eventually(lambda: details(client, kickoff_id)["tasks"][0]["state"] == "running", "the start")
    first = client.get(f"/executions/{kickoff_id}")

    def a_second_later() -> requests.Response | None:
        answer = client.get(f"/executions/{kickoff_id}")
        return answer if answer.headers["Date"] != first.headers["Date"] else None

    second = eventually(a_second_later, "the next second")
    assert (first.content, first.headers["ETag"]) == (second.content, second.headers["ETag"])
    assert first.json()["tasks"][0]["started_at"] is not None
    client.post(f"/stop/{kickoff_id}")
    stopped = details(client, kickoff_id)
    assert (stopped["state"], stopped["error"], stopped["tasks"][0]["state"]) == (
        "error",
        "Stopped on request",
        "error",
    )


def test_usage_stands_by_task_and_model(serve: Serve) -> None:
    tasks = [
        {"id": "a", "tokens": 400, "model": "large"},
        {"id": "draft_task", "tokens": 100, "model": "small", "human_input": True, "output": "x"},
        {"id": "c", "output": "y"},
    ]
    prices = Prices({"large": Price(1, 1, 10), "small": Price(1, 1, 1)})
    client = serve({"inputs": ["topic"], "tasks": tasks}, prices=prices)
    kickoff_id = client.kickoff()
    assert until(client, kickoff_id, "pending")["tasks"][1]["usage"]["total_tokens"] == 100
    client.resume(kickoff_id, approve=False, feedback="again")
    eventually(lambda: len(details(client, kickoff_id)["rounds"]) == 2, "the second round")
    client.resume(kickoff_id)
    found = until(client, kickoff_id, "completed")
    assert [task["usage"]["total_tokens"] for task in found["tasks"]] == [400, 200, 0]
    assert [task["usage"]["cost_usd"] for task in found["tasks"]] == [pytest.approx(0.004), pytest.approx(0.0002), 0]
    assert list(found["tasks"][1]["usage"]["by_model"]) == ["small"]
    assert found["usage"]["total_tokens"] == 600
    assert found["usage"]["cost_usd"] == pytest.approx(0.0042)


HOSTILE = ["a\\" * 60_000, "\x00\x1b" * 50_000, "\N{PILE OF POO}" * 60_000, '"}' * 70_000, "]" * 300_000]


@pytest.mark.parametrize("content", sampled(HOSTILE, 3), ids=range(len(HOSTILE)))
def test_a_hostile_text_is_told_as_text(serve: Serve, content: str) -> None:
    client = serve(
        {"inputs": ["topic"], "tasks": [{**GATED["tasks"][1], "output": "{topic}", "revised": "{feedback}"}]}
    )
    answer = client.post("/kickoff", {"inputs": {"topic": content}})
    assert answer.status_code == 200, answer.text
    kickoff_id = answer.json()["kickoff_id"]
    until(client, kickoff_id, "pending")
    client.resume(kickoff_id, approve=False, feedback=content[:100_000])
    eventually(lambda: len(details(client, kickoff_id)["rounds"]) == 2, "the second round")
    client.resume(kickoff_id)
    found = until(client, kickoff_id, "completed")
    assert found["inputs"] in ({"topic": content}, None)
    assert content.startswith(found["rounds"][0]["draft"][:1000])


class Wordy(ScriptedCrew):
    """Many tasks of one size."""

    def __init__(self, tasks: int, size: int) -> None:
        super().__init__({"inputs": ["topic"], "tasks": [{"id": f"task_{each}"} for each in range(tasks)]})
        self._size = size

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        for number, task in enumerate(self.tasks):
            output = str(number).ljust(self._size, "\N{SNOWMAN}")
            about = {"name": task.id, "description": "", "expected_output": "", "summary": ""}
            report(TaskDone({"task_id": task.id, "agent": "A", "output": output, "execution_time": 1.5, **about}))  # type: ignore[typeddict-item]
        return Completed(output, {"text": output})


@pytest.mark.parametrize(("tasks", "size"), sampled([(1, 4 * 2**20), (10, 2**20), (1000, 20_000), (1000, 10)], 2))
def test_an_answer_is_bounded_whatever_was_written(serve: Serve, tasks: int, size: int) -> None:
    client = serve(crew=Wordy(tasks, size))
    kickoff_id = client.kickoff()
    eventually(lambda: client.get("/executions").json()["executions"][0]["status"] == "completed", "the end")
    began = time.monotonic()
    found = details(client, kickoff_id)
    took = time.monotonic() - began
    assert found["output"].startswith(str(tasks - 1))
    assert found["tasks"][-1]["output"].startswith(str(tasks - 1))
    if size == 10:
        assert len(found["tasks"]) == tasks
        assert "cut" not in found
        assert not any("cut" in task for task in found["tasks"])
    else:
        assert found["cut"] is True
        assert (found["output_json"] is None) == ("output_json" in found["left_out"]) == (size > 100_000)
        assert all(task["cut"] for task in found["tasks"])
    assert len(found["tasks"]) == tasks or "tasks" in found["left_out"]
    assert all(task["seconds"] == 1.5 for task in found["tasks"])
    assert took < PATIENCE


def test_many_rounds_with_long_drafts_are_not_all_read(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    with create_engine(f"sqlite:///{tmp_path / 'service.db'}").begin() as connection:
        connection.execute(
            text(
                "WITH RECURSIVE n(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < 300) INSERT INTO rounds"
                " (execution_id, number, task_id, asked_at, draft, draft_is_cut) SELECT :id, n, '\"draft_task\"', 0,"
                " :draft, 0 FROM n"
            ),
            {"id": kickoff_id, "draft": json.dumps("x" * 200_000)},
        )
        asked = json.dumps(["draft_task"] * 300)
        connection.execute(text("UPDATE executions SET asked = :asked, writes = writes + 1"), {"asked": asked})
    tracemalloc.start()
    try:
        assert len(details(client, kickoff_id)["rounds"]) == 300
        assert client.get(f"/view?id={kickoff_id}").status_code == 200
        assert tracemalloc.get_traced_memory()[1] < 45 * 2**20  # all drafts take more than 60 MB
    finally:
        tracemalloc.stop()


def record(**more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(("inputs", "meta", "output_json", "output", "error"))
    return {**empty, "tasks": [], "rounds": [], "left_out": [], **more}


def a_task(output: str = "", **more: Any) -> dict[str, Any]:
    return {"task_id": "t", "name": "t", "agent": "a", "output": output, "steps": [], **more}


def test_what_does_not_fit_goes_in_the_promised_order() -> None:
    texts = json.loads(fitted(record(inputs={"x": "i" * 200_000}, tasks=[a_task("o" * 90_000) for _ in range(30)])))
    assert texts["left_out"] == []
    assert len(texts["inputs"]["x"]) == 200_000
    assert all(task["cut"] and task["output"] for task in texts["tasks"])
    many = [a_task("o" * 100, number=each, usage="u" * 200) for each in range(4000)]
    tasks = json.loads(fitted(record(inputs={"x": "i" * 200_000}, output_json={"x": 1}, tasks=many)))
    assert tasks["left_out"][0] == "output_json"
    assert (tasks["inputs"], tasks["output_json"]) == (None, None)
    assert tasks["tasks"][-1]["number"] == 3999
    assert tasks["tasks"][0]["number"] > 0
    assert tasks["left_out"][-1] == "tasks"


@pytest.mark.parametrize("stored", ["a\\", "\\\\", "é\n\x00", "\N{PILE OF POO}", 'a"b', ""])
def test_a_truncated_stored_string_yields_the_beginning_of_its_text(stored: str) -> None:
    whole = json.dumps(stored)
    for end in range(1, len(whole) + 1):
        begun = views.beginning(whole[:end])
        assert stored.startswith(begun.rstrip("?")), (whole[:end], begun)


def test_a_truncated_stored_object_yields_the_fields_it_has() -> None:
    stored = json.dumps({"a": 1, "b": [1, {"c": None}], "d": 'x"\\y', "e": 2.5})
    assert views.fields(stored) == ({"a": 1, "b": [1, {"c": None}], "d": 'x"\\y', "e": 2.5}, None)
    for end in range(len(stored)):
        found, cut = views.fields(stored[:end])
        assert {name: value for name, value in found.items() if name not in (cut, "e")}.items() <= json.loads(
            stored
        ).items()
    assert views.fields("[1]") == ({}, None)
    assert views.fields('{"a": ' + "[" * 100_000) == ({}, None)


def test_release_0_1_executions_are_shown_as_far_as_known(serve: Serve, tmp_path: Path) -> None:
    client = serve(GATED, db=sqlite_sample(tmp_path), keep_days=36_500.0)
    over = details(client, "8c9e72f2-3952-465e-8012-519c3f4fbadd")
    assert (over["state"], over["started_at"]) == ("completed", None)
    assert over["tasks"][0]["output"]
    assert over["tasks"][0]["usage"] is None
    waiting = details(client, "3d8d0d16-3ef5-4b66-916d-295cd5358f0f")
    assert waiting["rounds"][-1]["draft"] == "Draft 2 on wait, after: Shorter."
    assert waiting["left_out"] == ["rounds"]
    client.resume("3d8d0d16-3ef5-4b66-916d-295cd5358f0f", feedback="so")
    decided = details(client, "3d8d0d16-3ef5-4b66-916d-295cd5358f0f")["rounds"][-1]
    assert (decided["draft"], decided["human_feedback"]) == ("Draft 2 on wait, after: Shorter.", "so")
    assert decided["output_sha256"] == sha256("Draft 2 on wait, after: Shorter.")


def test_a_row_that_cannot_be_read_ends_as_an_error(serve: Serve, tmp_path: Path) -> None:
    client = serve(GATED)
    kickoff_id = client.kickoff()
    until(client, kickoff_id, "pending")
    with create_engine(f"sqlite:///{tmp_path}/service.db").begin() as connection:
        connection.execute(text("UPDATE executions SET asked = '{', writes = writes + 1"))
    assert details(client, kickoff_id)["state"] == "error"


def test_on_postgresql_it_is_the_same(serve: Serve, postgresql: str) -> None:
    client = serve(GATED, db=postgresql)
    kickoff_id = client.kickoff("\x00 tea, \\u0000, \\\x00")
    until(client, kickoff_id, "pending")
    client.resume(kickoff_id, approve=False, feedback="\x00 shorter")
    eventually(lambda: len(details(client, kickoff_id)["rounds"]) == 2, "the second round")
    client.resume(kickoff_id)
    found = until(client, kickoff_id, "completed")
    assert found["rounds"][0]["human_feedback"] == "\x00 shorter"
    assert [task["state"] for task in found["tasks"]] == ["completed"] * 3


def test_what_belongs_to_an_execution_ends_with_it(serve: Serve, tmp_path: Path) -> None:
    client = serve(dialect="live")
    first = client.kickoff()
    polled = first
    for feedback in ("shorter", "Approved."):
        until(client, polled, "pending")
        task_id = client.get("/executions").json()["executions"][0]["task_id"]
        body = {"executionId": first, "taskId": task_id, "humanFeedback": feedback}
        polled = client.post("/resume", body).json()["kickoff_id"]
    until(client, polled, "completed")
    with create_engine(f"sqlite:///{tmp_path}/service.db").begin() as connection:

        def stored(table: str) -> int:
            return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()

        assert (stored("rounds"), stored("earlier_kickoff_ids")) == (2, 1)
        connection.execute(text("DELETE FROM executions"))  # as an earlier release does it
        assert (stored("rounds"), stored("earlier_kickoff_ids")) == (0, 0)


def test_an_execution_deleted_while_it_is_read_is_unknown(
    serve: Serve, postgresql: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(PLAIN, db=postgresql)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    database = Database(postgresql)
    with ThreadPoolExecutor(1) as pool, database.writing() as connection:
        connection.execute(text("LOCK TABLE results"))
        answer = pool.submit(client.get, f"/executions/{kickoff_id}")
        eventually(lambda: waits_for_lock(connection), "the read")
        for statement in FORGET:
            connection.execute(statement, {"ids": [kickoff_id]})
    database.close()
    assert (answer.result().status_code, answer.result().json()) == (404, {"detail": "Execution not found"})
    assert "The database" not in caplog.text
