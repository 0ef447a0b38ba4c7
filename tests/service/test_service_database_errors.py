"""Row S52: only a value ends an execution; whatever else the database reports, its writes wait."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, eventually
from faults.pooler import TransactionPooler
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, TimeoutError

from crew_service.engine import retrying
from crew_service.storage import queries
from crew_service.storage.availability import DatabaseUnavailable, cause_of, is_of_value
from crew_service.storage.database import Database
from scripts.stack.database import ThrowAwayDatabase

pytestmark = [pytest.mark.slow, pytest.mark.row("S52")]
TOKEN = "a-token-of-20-letters"
PLAIN = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "first", "agent": "A", "seconds": 0.1, "output": "First on {topic}"},
        {"id": "last", "agent": "B", "seconds": 0.1, "output": "All on {topic}"},
    ],
}


@pytest.fixture
def start(command: Callable[..., Command], tmp_path: Path) -> Callable[[str], Client]:
    (tmp_path / "crew.json").write_text(json.dumps(PLAIN))

    def start(database: str) -> Client:
        return command("--crew", "crew.json", "--token", TOKEN, "--db", database).client(TOKEN)

    return start


@pytest.fixture
def pooled(throw_away: ThrowAwayDatabase) -> Iterator[str]:
    with contextlib.closing(TransactionPooler(throw_away.url)) as pooler:
        yield pooler.url


def test_forty_executions_complete_behind_a_transaction_pooler(start: Callable[[str], Client], pooled: str) -> None:
    client = start(pooled)
    for kickoff_id in [client.kickoff() for _ in range(40)]:
        assert eventually(lambda kickoff_id=kickoff_id: ended(client, kickoff_id), "the end")["status"] == "completed"


def ended(client: Client, kickoff_id: str) -> dict[str, str] | None:
    record = client.status(kickoff_id)
    return record if record.get("status") in ("completed", "error") else None


def test_no_setting_is_left_on_a_poolers_connection(pooled: str) -> None:
    database = Database(pooled)
    for _ in range(4):
        with database.writing() as connection:
            assert connection.execute(text("SHOW lock_timeout")).scalar_one() == "10s"
        with database.reading() as connection:
            assert connection.execute(text("SHOW lock_timeout")).scalar_one() == "0"
    database.close()


@pytest.mark.parametrize("given", ["none", "0", "5"])
def test_statements_are_prepared_only_if_the_url_asks_for_it(postgresql: str, given: str) -> None:
    for url, asked in ((postgresql, None), (f"{postgresql}?prepare_threshold={given}", given)):
        database = Database(url)
        with database.writing() as connection:
            driver = connection.connection.dbapi_connection
            threshold = getattr(driver, "prepare_threshold", None)  # SQLAlchemy 1.4 uses psycopg2, which never does
        database.close()
        assert threshold == (int(asked) if asked and asked != "none" and hasattr(driver, "pgconn") else None)


def test_a_lost_privilege_ends_no_execution(start: Callable[[str], Client], throw_away: ThrowAwayDatabase) -> None:
    client = start(throw_away.url)
    kickoff_id = client.kickoff()
    database = Database(throw_away.url)
    refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
    with database.writing() as connection:
        connection.execute(text(f"{refuse} 'permission denied' USING ERRCODE = '42501'; END $$"))
        for table in ("executions", "results"):
            connection.execute(
                text(f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} EXECUTE FUNCTION refuse()")
            )
    answer = client.post("/kickoff", {"inputs": {"topic": "AI"}})
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "The database cannot be used: a privilege is missing.",
    )
    with database.writing() as connection:
        connection.execute(text("DROP FUNCTION refuse CASCADE"))
    database.close()
    assert eventually(lambda: ended(client, kickoff_id), "the end")["status"] == "completed"


class DriverError(Exception):
    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


@pytest.mark.parametrize("code", ["22P05", "22003", "23502", "23514", "54000", "54001"])
def test_a_value_is_at_fault(code: str) -> None:
    assert is_of_value(DriverError(code))


@pytest.mark.parametrize("code", ["23505", "23503", "26000", "42501", "42P01", "40001", "55P03", "57P01", "XX001"])
def test_anything_else_waits(code: str) -> None:
    assert not is_of_value(DriverError(code))


class Patience:
    """A clock, and a cancellation whose pauses put it forward."""

    reason = ""

    def __init__(self) -> None:
        self.now = 0.0

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.long
@pytest.mark.parametrize("code", ["25006", "40001", "42501", "53100", "53200", "55P03", "57P03", "58030"])
def test_a_database_refusing_one_table_for_minutes_ends_no_execution(postgresql: str, code: str) -> None:
    """Others go on meanwhile: a full disk takes small values, and a lock or a privilege may be of one table."""
    patience, tries = Patience(), 0
    with contextlib.closing(Database(postgresql)) as database:
        with database.writing() as connection:
            refuse = f"BEGIN RAISE EXCEPTION 'nicht jetzt' USING ERRCODE = '{code}'; END"
            connection.execute(text(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {refuse} $$"))
            connection.execute(text("CREATE TRIGGER refuse BEFORE INSERT ON results EXECUTE FUNCTION refuse()"))

        def write() -> str:
            nonlocal tries
            tries += 1
            if patience.now > 300:
                with database.writing() as connection:
                    connection.execute(text("DROP FUNCTION refuse CASCADE"))
            with database.writing() as connection:
                queries.add_result(connection, "x", 0, {"task_id": "write"})
            return "written"

        said = retrying.until_available(write, patience, lambda: patience.now, lambda: patience.now)  # type: ignore[arg-type]
        assert said == ("written", tries)
        with database.reading() as connection:
            assert len(queries.tasks_of(connection, "x")) == 1


def test_a_statement_timeout_does_not_hide_a_lock(throw_away: ThrowAwayDatabase) -> None:
    """Only a lock is sure to be no write's fault: a value may be so large that its statement takes too long."""
    with contextlib.closing(Database(throw_away.url)) as database, database.writing() as connection:
        connection.execute(text(f"ALTER DATABASE \"{throw_away.name}\" SET statement_timeout = '1s'"))
    with contextlib.closing(Database(throw_away.url)) as database, database.writing() as other:
        other.execute(text("LOCK TABLE results"))
        for use in (database.writing, database.reading):
            with pytest.raises(DatabaseUnavailable) as locked, use() as connection:
                queries.tasks_of(connection, "x")
            assert (str(locked.value), locked.value.cause) == ("The database is locked by another process.", "")


OF_SQLITE = ["database or disk is full", "database is locked", "disk I/O error", "attempt to write a readonly database"]


@pytest.mark.parametrize("told", OF_SQLITE)
def test_what_a_sqlite_file_refuses_waits_however_long_it_takes(told: str) -> None:
    error = OperationalError("INSERT", {}, sqlite3.OperationalError(told))
    assert (is_of_value(error), cause_of(error)) == (False, "")


def test_a_connection_that_cannot_be_opened_is_no_writes_fault() -> None:
    assert cause_of(OperationalError(None, None, sqlite3.OperationalError("too many connections"))) == ""
    assert cause_of(TimeoutError("QueuePool limit of size 5 overflow 2 reached")) == ""


@pytest.mark.row("S52", "S27")
@pytest.mark.parametrize(("others_succeed", "cause"), [(True, "42P01"), (False, "42P01"), (True, "")])
def test_a_write_that_alone_is_refused_ends_after_a_minute(others_succeed: bool, cause: str) -> None:
    patience, tries = Patience(), 0
    lasts = 300 if cause else 4 * 3600

    def write() -> str:
        nonlocal tries
        tries += 1
        if patience.now > lasts:
            return "written"
        raise DatabaseUnavailable("The database cannot be reached.", cause)

    def wait() -> Any:
        progressed_at = (lambda: patience.now) if others_succeed else (lambda: float("-inf"))
        return retrying.until_available(write, patience, progressed_at, lambda: patience.now)  # type: ignore[arg-type]

    if others_succeed and cause:
        with pytest.raises(retrying.WriteRefused, match="for a minute"):
            wait()
        assert 60 <= patience.now < 75
    else:
        assert wait() == ("written", tries)
