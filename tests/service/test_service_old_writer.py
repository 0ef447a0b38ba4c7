"""Row S31: a service of an earlier release goes on writing for a while beside the new schema, and nothing gets lost.

The statements are those of that release: they name no column, table or trigger that came later.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from crew_client import Serve
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection

from crew_service.engine.files import Files
from crew_service.engine.tool_rules import JournalOptions, ToolRule
from crew_service.options import oldest_release
from crew_service.scripted_crew import ScriptedCrew
from crew_service.settings import FileLimits
from crew_service.storage import claims, flow_states, journal, queries, schema
from crew_service.storage import files as stored_files
from crew_service.storage.database import Database, DatabaseUnusable

pytestmark = [pytest.mark.slow, pytest.mark.row("S31")]
SCENARIO = {"tasks": [{"id": "write", "tokens": 100, "output": "x"}]}
# A kickoff, a task's progress, the end of an execution, a resume of the live dialect and what retention removes.
KICKOFF = """
INSERT INTO executions (id, kickoff_id, crew, owner, state, segment, writes, created_at, due_at, updated_at,
    work_seconds, tokens, inputs, completed_tasks, asked)
VALUES (:id, :id, '', NULL, 'running', 1, 1, :now, :now, :now, 0, 0, '{}', 0, '[]')
"""
PROGRESS = "UPDATE executions SET tokens = 70, completed_tasks = 1, updated_at = :now WHERE id = :id"
END = """
UPDATE executions SET state = 'completed', tokens = 90, usage = :usage, output = '"y"', tasks = '[]', ended_at = :now,
    aged_from = :now, updated_at = :now WHERE id = :id
"""
RESUME = "UPDATE executions SET kickoff_id = :new, updated_at = :now WHERE id = :id"
REMOVAL = "DELETE FROM executions WHERE id = :id"
ANSWERED = {"key": "1", "within": None, "answer": "1"}


def write(connection: Connection, statement: str, some_id: str, **more: Any) -> None:
    connection.execute(text(statement), {"id": some_id, "now": time.time(), **more})


def counts(connection: Connection) -> dict[str, int]:
    found = connection.execute(text("SELECT what, sum(number) FROM counts GROUP BY what"))
    return {what: int(number) for what, number in found if number}


def test_an_earlier_releases_writes_are_counted_ordered_and_told(serve: Serve, database: str) -> None:
    Database(database).close()
    old = [str(uuid.uuid4()) for _ in range(3)]
    engine = create_engine(database)
    with engine.begin() as connection:
        for some_id in old:
            write(connection, KICKOFF, some_id)
        assert counts(connection) == {"running": 3}
        for some_id in old[:2]:
            write(connection, PROGRESS, some_id)
            write(connection, END, some_id, usage=json.dumps({"total_tokens": 90, "prompt_tokens": 60}))
        write(connection, REMOVAL, old[2])
        assert counts(connection) == {"completed": 2}
        new = [str(uuid.uuid4()) for _ in range(2)]
        for kickoff_id in new:
            write(connection, RESUME, old[0], new=kickoff_id)
        kept = connection.execute(text("SELECT kickoff_id FROM earlier_kickoff_ids")).scalars().all()
        assert kept == new[:1], "the one between: the first is the execution's id"
    client = serve(SCENARIO, db=database)
    mine = client.kickoff()
    client.until(mine, "completed")
    listed = client.get("/executions").json()["executions"]
    assert [each["kickoff_id"] for each in listed] == [mine, old[1], new[1]]
    told = client.get(f"/executions/{new[0]}").json()
    assert (told["execution_id"], told["kickoff_ids"]) == (old[0], [old[0], *new])
    assert told["usage"] == {"total_tokens": 90, "prompt_tokens": 60, "completion_tokens": 0}
    assert json.loads(client.get(f"/status/{new[1]}").headers["Crew-Usage"]) == told["usage"]
    with engine.connect() as connection:
        assert counts(connection) == {"completed": 3}
    engine.dispose()


@pytest.mark.parametrize("rule", ["once", pytest.param("prepare", marks=pytest.mark.row("S57"))])
def test_a_rule_an_earlier_release_would_ignore_keeps_it_out(postgresql: str, rule: str) -> None:
    crew = ScriptedCrew(
        {"tasks": [{"id": "buy", "steps": [{"tool": "add"}]}]}, JournalOptions((ToolRule("add", rule),))
    )
    oldest = {"once": schema.WITH_RULES, "prepare": schema.WITH_PREPARE}[rule]
    assert oldest_release([crew]) == oldest
    with closing(Database(postgresql)) as database:
        register = "INSERT INTO processes (id, beat, host, started_at) VALUES ('old', 0, 'elsewhere', 0)"
        engine = create_engine(postgresql)
        with engine.begin() as connection:
            connection.execute(text(register))
        with pytest.raises(DatabaseUnusable, match="A service of an earlier release is using this database"):
            Database(postgresql).keep_out_earlier_releases(oldest)
        with engine.begin() as connection:
            assert connection.execute(text("SELECT oldest FROM releases")).scalar() == schema.OLDEST
            connection.execute(text("DELETE FROM processes"))
            claims.register(connection, "new", host="here", alone=False, now=0.0)
        database.keep_out_earlier_releases(oldest)
        with engine.begin() as connection:
            assert connection.execute(text("SELECT oldest FROM releases")).scalar() == oldest
        engine.dispose()
    assert schema.OLDEST < oldest <= schema.newest()


def test_what_an_earlier_release_finishes_leaves_no_journal(database: str) -> None:
    """It knows nothing of the journal of an execution that it continues."""
    Database(database).close()
    engine = create_engine(database)
    kept = {"part": "", "kind": "tool", "name": "t", "within": None, "answer": "1"}
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    with engine.begin() as connection:
        for some_id in (one, other):
            write(connection, KICKOFF, some_id)
            for number, task in enumerate(("", "write", 'a "quoted" wörd')):
                journal.add(
                    connection, some_id, {**kept, "number": number, "task_id": task, "key": str(number)}, now=1.0
                )
        finished = text("INSERT INTO results (execution_id, position, task) VALUES (:id, :place, :task)")
        for place, task in enumerate(("write", 'a "quoted" wörd')):
            connection.execute(finished, {"id": one, "place": place, "task": json.dumps({"task_id": task})})
        assert [entry["task_id"] for entry in journal.entries(connection, one)] == [""]
        write(connection, END, one, usage="{}")
        assert journal.entries(connection, one) == []
        assert len(journal.entries(connection, other)) == 3
        write(connection, REMOVAL, other)
        assert journal.entries(connection, other) == []
    engine.dispose()


@pytest.mark.row("S55")
def test_an_earlier_release_claims_no_flow_with_a_state(postgresql: str) -> None:
    """Its claim has no effect, and it can claim other executions meanwhile."""
    Database(postgresql).close()
    engine = create_engine(postgresql)
    with_state, without = str(uuid.uuid4()), str(uuid.uuid4())
    with engine.begin() as connection:
        claims.register(connection, "new", host="here", alone=False, now=0.0)
        connection.execute(
            text("INSERT INTO processes (id, beat, host, started_at, release) VALUES ('old', 0, '', 0, '0019')")
        )
        for some_id in (with_state, without):
            write(connection, KICKOFF.replace("running", "queued"), some_id)
        flow_states.put(connection, with_state, "abc")
    states = text("SELECT id, state, claimed_by, segment FROM executions")
    with engine.begin() as connection:
        claims.claim_due(connection, "old", "", now=time.time() + 1, limit=2)
        claimed = {row.id: (row.state, row.claimed_by, row.segment) for row in connection.execute(states)}
        assert claimed == {with_state: ("queued", None, 1), without: ("running", "old", 2)}
        assert claims.claim_due(connection, "old", "", now=time.time() + 1, limit=2) == []
        assert claims.claim_due(connection, "new", "", now=time.time() + 3, limit=2) == [with_state]
    engine.dispose()


@pytest.mark.row("S76")
def test_executions_with_files_evade_earlier_releases_and_hand_files_on(postgresql: str) -> None:
    """An earlier release that continues a failed execution does not know that it had files."""
    with closing(Database(postgresql)) as database:
        with_file, other = str(uuid.uuid4()), str(uuid.uuid4())
        upload = Files(database, FileLimits()).begin("organization")
        upload.add(b"abc")
        file = upload.complete()
        given = json.dumps([{**vars(file), "name": "report", "in_inputs": False}])
        old = "INSERT INTO processes (id, beat, host, started_at, release) VALUES ('old', 0, '', 0, '0021')"
        with database.writing() as connection:
            claims.register(connection, "new", host="here", alone=False, now=0.0)
            connection.execute(text(old))
            write(connection, KICKOFF.replace("running", "queued"), with_file)
            named = {"id": with_file, "files": given}
            connection.execute(text("UPDATE executions SET files = :files WHERE id = :id"), named)
            assert stored_files.take(connection, "organization", {file.id}, into=with_file)
        now = time.time()
        with database.writing() as connection:
            claims.claim_due(connection, "old", "", now=now + 1, limit=2)
            states = text("SELECT state, claimed_by FROM executions")
            assert connection.execute(states).all() == [("queued", None)]
            assert claims.claim_due(connection, "new", "", now=now + 3, limit=2) == [with_file]
        continuing = KICKOFF.replace("(id, ", "(continued_from, id, ").replace("VALUES (", "VALUES (:earlier, ")
        with database.writing() as connection:
            write(connection, continuing, other, earlier=with_file)
            found = "SELECT files FROM executions WHERE id = :id"
            assert connection.execute(text(found), {"id": other}).scalar() == json.loads(given)
            write(connection, REMOVAL, with_file)
            assert stored_files.piece(connection, file.id, 0) == b"abc"
            write(connection, REMOVAL, other)
            assert stored_files.piece(connection, file.id, 0) is None


@pytest.mark.row("S55")
def test_a_state_passes_to_the_continuation_and_ends_with_it(database: str) -> None:
    Database(database).close()
    engine = create_engine(database)
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    continuing = KICKOFF.replace("(id, ", "(continued_from, id, ").replace("VALUES (", "VALUES (:earlier, ")
    with engine.begin() as connection:
        write(connection, KICKOFF, one)
        flow_states.put(connection, one, "abc")
        flow_states.put(connection, one, "def")
        write(connection, continuing, other, earlier=one)
        assert flow_states.get(connection, other) == flow_states.get(connection, one) == "def"
        write(connection, REMOVAL, one)
        assert (flow_states.get(connection, one), flow_states.get(connection, other)) == (None, "def")
        write(connection, END, other, usage="{}")
        assert flow_states.get(connection, other) is None
    engine.dispose()


def test_many_journal_entries_hardly_slow_storing_a_large_result(database: str) -> None:
    kept = {"part": "", "kind": "tool", "name": "t", "within": None, "answer": "1", "task_id": "other"}
    some_id, seconds = str(uuid.uuid4()), []
    with closing(Database(database)) as opened, opened.writing() as connection:
        none = [range(0)] * 4
        for place, entries in enumerate((range(0), range(1), *none, range(1, 2000), *none)):
            for number in entries:
                journal.add(connection, some_id, {**kept, "number": number, "key": str(number)}, now=1.0)
            began = time.monotonic()
            queries.add_result(connection, some_id, place, {"task_id": "write", "output": "x" * 2_000_000})
            seconds.append(time.monotonic() - began)
    with_one, with_many = min(seconds[1:6]), min(seconds[6:])  # the first one also prepares the statement
    assert with_many < 10 * with_one


def test_a_result_that_sqlite_cannot_parse_is_stored(tmp_path: Path) -> None:
    deep = '{"task_id": "write", "output_json": ' + "[" * 5000 + "]" * 5000 + "}"
    with closing(Database(str(tmp_path / "x.db"))) as database, database.writing() as connection:
        journal.add(
            connection, "x", {"number": 1, "task_id": "", "part": "", "kind": "tool", "name": "t"} | ANSWERED, now=1.0
        )
        connection.execute(
            text("INSERT INTO results (execution_id, position, task) VALUES ('x', 0, :task)"), {"task": deep}
        )
        assert len(journal.entries(connection, "x")) == 1
