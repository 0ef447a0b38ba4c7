"""Row S15: a stored execution that cannot be read ends as an error, and nothing else notices."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from crew_client import GATED, Client, Serve

from crew_service.cli import main
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits
BAD_VALUES = [
    ("inputs", "{broken"),
    ("inputs", "[]"),
    ("inputs", "5"),
    ("gate", "{broken"),
    ("gate", "{}"),
    ("gate", "null"),
    ("asked", "{broken"),
    ("webhooks", '{"task": 1'),
    ("meta", "nan?"),
    ("last_step", "\x00"),
    ("state", "sideways"),
    ("work_seconds", "soon"),
    ("created_at", "yesterday"),
    ("completed_tasks", "some"),
]


def spoil(database: Path, execution_id: str, column: str, value: str) -> None:
    with sqlite3.connect(database, timeout=PATIENCE) as connection:
        connection.execute(f"UPDATE executions SET {column} = ? WHERE id = ?", (value, execution_id))
    connection.close()


def others_go_on(client: Client, waiting: str) -> None:
    client.resume(waiting)
    client.until(waiting, "completed")
    fresh = client.kickoff()
    client.until(fresh, "pending")


@pytest.mark.long
@pytest.mark.row("S15")
@pytest.mark.parametrize(("column", "value"), BAD_VALUES)
def test_an_unreadable_waiting_execution_ends_as_an_error(
    serve: Serve, tmp_path: Path, column: str, value: str
) -> None:
    client = serve(GATED, workers=2)
    bad, good = client.kickoff("bad"), client.kickoff("good")
    for kickoff_id in (bad, good):
        client.until(kickoff_id, "pending")
    spoil(tmp_path / "service.db", bad, column, value)
    listed = client.get("/executions").json()["executions"]
    assert {one["kickoff_id"] for one in listed} == {bad, good}
    assert client.get("/").status_code == 200
    assert main(["list", "--db", str(tmp_path / "service.db")]) == 0
    record = client.status(bad)
    assert (record["status"], record["error"]) == ("error", "The stored execution cannot be read, so it was ended.")
    assert client.resume(bad).status_code in (400, 404)
    assert client.post(f"/stop/{bad}").status_code == 400
    others_go_on(client, good)


@pytest.mark.long
@pytest.mark.row("S15")
@pytest.mark.parametrize("dialect", ["spec", "live"])
@pytest.mark.parametrize(("column", "value"), [("inputs", "{broken"), ("gate", "{broken"), ("webhooks", "[1]")])
def test_a_queued_execution_that_cannot_be_read_holds_nobody_up(
    serve: Serve, tmp_path: Path, column: str, value: str, dialect: str
) -> None:
    scenario = {"inputs": ["topic"], "tasks": [{"id": "t", "seconds": 3.0, "output": "All on {topic}"}]}
    client = serve(scenario, workers=1, dialect=dialect)
    first, bad, last = (client.kickoff(topic) for topic in ("first", "bad", "last"))
    spoil(tmp_path / "service.db", bad, column, value)
    for kickoff_id in (first, last):
        client.until(kickoff_id, {"spec": "completed", "live": "SUCCESS"}[dialect])
    client.until(bad, {"spec": "error", "live": "FAILED"}[dialect])


@pytest.mark.long
@pytest.mark.row("S15")
@pytest.mark.parametrize(("column", "value"), [("open_tasks", '{"t": 5}'), ("limits", '{"max_tokens": "many"}')])
def test_a_malformed_execution_delays_no_others_claimed_with_it(
    serve: Serve, tmp_path: Path, column: str, value: str
) -> None:
    scenario = {"inputs": ["topic"], "tasks": [{"id": "t", "seconds": 3.0, "output": "All on {topic}"}]}
    client = serve(scenario, workers=3)
    before = [client.kickoff() for _ in range(3)]
    bad, *good = (client.kickoff(topic) for topic in ("bad", "good", "better"))
    spoil(tmp_path / "service.db", bad, column, value)
    for kickoff_id in (*before, *good):
        client.until(kickoff_id, "completed")
    assert client.until(bad, "error")["error"] == "The stored execution cannot be read, so it was ended."


@pytest.mark.row("S15")
def test_an_unreadable_finished_task_ends_only_its_execution(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    bad, good = client.kickoff("bad"), client.kickoff("good")
    for kickoff_id in (bad, good):
        client.until(kickoff_id, "pending")
    with sqlite3.connect(tmp_path / "service.db", timeout=PATIENCE) as connection:
        connection.execute("UPDATE results SET task = '{broken' WHERE execution_id = ?", (bad,))
    connection.close()
    assert main(["status", "--db", str(tmp_path / "service.db"), bad]) == 0
    client.resume(bad)
    client.until(bad, "error")
    others_go_on(client, good)


@pytest.mark.row("S15")
def test_a_question_whose_call_is_gone_ends_its_execution(serve: Serve, tmp_path: Path) -> None:
    send = {"tool": "send_mail", "result": "sent", "ask": "tool"}
    client = serve({"inputs": ["topic"], "tasks": [{"id": "send", "steps": [send], "output": "Done"}]})
    bad = client.kickoff()
    client.until(bad, "pending")
    with sqlite3.connect(tmp_path / "service.db", timeout=PATIENCE) as connection:
        connection.execute("DELETE FROM journal")
    connection.close()
    answer = {"execution_id": bad, "task_id": "send#1", "outcome": "approve"}
    assert client.post("/resume", answer).status_code in (400, 404)
    record = client.status(bad)
    assert (record["status"], record["error"]) == ("error", "The stored execution cannot be read, so it was ended.")
