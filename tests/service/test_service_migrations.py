"""The schema: what migrations make is what the code reads, and a database of release 0.1 is carried over."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from crew_client import Command, Serve, eventually
from databases import sqlite_sample
from sampling import sampled
from sqlalchemy import create_engine, inspect, text

from crew_service.storage import file_lock, schema
from crew_service.storage.database import Database, DatabaseUnusable
from crew_service.storage.tables import metadata

pytestmark = pytest.mark.slow
SCENARIO = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research_task", "agent": "Researcher", "output": "Notes on {topic}"},
        {
            "id": "draft_task",
            "agent": "Writer",
            "human_input": "review",
            "output": "Draft {revision} on {topic}",
            "revised": "Draft {revision} on {topic}, after: {feedback}",
        },
        {"id": "publish_task", "agent": "Editor", "output": "All on {topic}"},
    ],
}
FOR_EVER = 36_500.0  # days: the sample grows old
COMPLETED = "8c9e72f2-3952-465e-8012-519c3f4fbadd"
WAITING = "3d8d0d16-3ef5-4b66-916d-295cd5358f0f"
STOPPED = "e1b65ac9-7130-44f3-b1b3-b4f8f798c7d0"
RUNNING = "17343fed-3a05-413c-98cd-d16c5946aab8"
QUEUED = "2525bacb-9f6b-4bb6-a526-03c6049f873a"


def test_what_the_migrations_make_is_what_the_code_reads(empty_database: str) -> None:
    Database(empty_database).close()
    engine = create_engine(empty_database)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == schema.newest()
        made = {table: {index["name"] for index in inspect(connection).get_indexes(table)} for table in metadata.tables}
    engine.dispose()
    assert made["executions"] >= {index.name for index in metadata.tables["executions"].indexes}


@pytest.mark.xdist_group("many processes")
def test_processes_that_start_at_once_make_the_schema_once(empty_database: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        for opened in pool.map(Database, [empty_database] * 6):
            opened.close()


def test_a_release_0_1_database_is_carried_over_completely(serve: Serve, tmp_path: Path) -> None:
    client = serve(SCENARIO, db=sqlite_sample(tmp_path), keep_days=FOR_EVER, user_tokens=[("ann", "anns-token")])
    assert client.status(COMPLETED)["result"]["output"] == "All on done"
    assert client.status(STOPPED)["error"] == "Stopped on request"
    assert client.until(RUNNING, "completed")["result"]["output"] == "All on run"
    assert client.until(QUEUED, "pending")["task_output"] == "Draft 1 on queue"
    ann = client.holding("anns-token")
    assert ann.status(WAITING)["task_output"] == "Draft 2 on wait, after: Shorter."
    ann.resume(WAITING)
    assert client.until(WAITING, "completed")["result"]["output"] == "All on wait"
    body, key = {"inputs": {"topic": "done"}, "meta": {"order": 7}}, {"Idempotency-Key": "key-1"}
    assert client.post("/kickoff", body, headers=key).json() == {"kickoff_id": COMPLETED}


BROKEN = {
    "inputs": (f"executions SET inputs = '{{broken' WHERE id = '{RUNNING}'", RUNNING),
    "meta": (f"executions SET meta = 'nan?' WHERE id = '{RUNNING}'", RUNNING),
    "finished task": (f"results SET task = '{{broken' WHERE execution_id = '{RUNNING}'", RUNNING),
    "addresses": (f"executions SET webhooks = '{{broken' WHERE id = '{WAITING}'", WAITING),
    "question": (f"executions SET gate = '{{broken' WHERE id = '{WAITING}'", WAITING),
    "drafts": (f"executions SET asked = '{{broken' WHERE id = '{WAITING}'", WAITING),
    "result": (f"executions SET tasks = '{{broken' WHERE id = '{COMPLETED}'", COMPLETED),
    "address": ("outbox SET url = '{broken'", None),
    "address without a text": ("outbox SET url = '5'", None),
    "address for another parser": ("outbox SET url = '\"http://[::::]/\"'", None),
    "webhook": ("outbox SET body = '{broken'", None),
}


@pytest.mark.long
@pytest.mark.row("S15")
@pytest.mark.parametrize("broken", BROKEN)
def test_a_release_0_1_database_with_an_unreadable_row_heals(serve: Serve, tmp_path: Path, broken: str) -> None:
    sample, (change, bad) = sqlite_sample(tmp_path), BROKEN[broken]
    with sqlite3.connect(sample) as connection:
        assert connection.execute(f"UPDATE {change}").rowcount
    connection.close()
    client = serve(SCENARIO, db=sample, keep_days=FOR_EVER, webhook_attempts=1)
    assert client.get("/executions").status_code == client.get("/").status_code == 200
    states = {COMPLETED: "completed", WAITING: "pending", STOPPED: "error", RUNNING: "completed", QUEUED: "pending"}
    for execution_id, word in states.items():
        record = client.until(execution_id, "error" if execution_id == bad else word)
        assert ("cannot be read, so it was ended" in str(record)) == (execution_id == bad)
    if bad is None:
        given_up = "\ncrew_service_webhooks_given_up 1"
        eventually(lambda: given_up in client.get("/metrics").text, "giving up")
    fresh = client.kickoff()
    client.until(fresh, "pending")


def test_the_command_line_carries_it_over_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from crew_service.cli import main

    assert main(["list", "--db", sqlite_sample(tmp_path)]) == 0
    assert WAITING in capsys.readouterr().out


@pytest.mark.row("S31")
def test_no_command_migrates_a_sqlite_file_a_service_is_using(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from crew_service.cli import main

    sample = sqlite_sample(tmp_path)
    with file_lock.held(Path(sample), named=sample):
        assert main(["list", "--db", sample]) == 2
    assert "a service is using it" in capsys.readouterr().err
    with closing(sqlite3.connect(sample)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert main(["list", "--db", sample]) == 0
    with file_lock.held(Path(sample), named=sample):
        assert main(["list", "--db", sample]) == 0


def test_a_newer_database_is_refused_and_left_alone(database: str) -> None:
    Database(database).close()
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(DatabaseUnusable, match="a different version"):
        Database(database)


def test_an_interrupted_upgrade_from_release_0_1_is_repeated(tmp_path: Path) -> None:
    """All of it is one transaction: what is half done is not there."""
    sample = sqlite_sample(tmp_path)
    with sqlite3.connect(sample) as connection:
        connection.execute("CREATE TABLE sessions (x)")  # what a later step of the upgrade creates is in the way
    with pytest.raises(DatabaseUnusable):
        Database(sample)
    with sqlite3.connect(sample) as connection:
        connection.execute("DROP TABLE sessions")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(executions)")]
    assert "claimed_by" not in columns
    Database(sample).close()


def test_release_0_1_does_not_open_what_was_carried_over(tmp_path: Path) -> None:
    sample = sqlite_sample(tmp_path)
    Database(sample).close()
    with sqlite3.connect(sample) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() != (1,)


@pytest.mark.row("S13")
@pytest.mark.parametrize(
    "name", sampled(["{}/x.db", "sqlite:///{}/x.db", "sqlite+pysqlite:///{}/x.db", "sqlite:///x.db", "link"], 4)
)
def test_a_sqlite_file_under_any_name_refuses_a_second_service(
    command: Callable[..., Command], tmp_path: Path, name: str
) -> None:
    (tmp_path / "crew.json").write_text(json.dumps(SCENARIO))
    (tmp_path / "link").symlink_to("x.db")
    (tmp_path / "folder").symlink_to(".")
    command("--db", "x.db", "--crew", "crew.json", "--token", "a-token")
    second = Command.refused(tmp_path, "--db", name.format(tmp_path))
    assert second.returncode == 2
    assert "is in use by another crew service" in second.stderr
