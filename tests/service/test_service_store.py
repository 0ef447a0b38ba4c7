"""What the database keeps, for how long, and what a scenario may say."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from crew_client import GATED, PLAIN, Client, Serve, eventually
from databases import put
from sqlalchemy import create_engine, event, func, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError, OperationalError

from crew_service.engine import crew, retention, runner
from crew_service.local import running_service
from crew_service.scripted_crew import DEMO, ScriptedCrew
from crew_service.storage import queries, states
from crew_service.storage.database import Database, DatabaseUnusable
from crew_service.storage.tables import executions

MOVES = [states.CLAIM, states.REQUEUE, states.WAIT, states.RESUME, states.COMPLETE, states.FAIL, states.STOP]


def test_terminal_states_are_final_and_all_others_have_a_transition() -> None:
    left = {source for move in MOVES for source in move.sources}
    assert left == set(states.State) - states.OVER
    assert {move.target for move in MOVES} == set(states.State)


def test_only_ended_executions_are_deleted_after_their_retention_days(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    over, waiting = client.kickoff(), client.kickoff()
    key = {"Idempotency-Key": "k"}
    kept = client.post("/kickoff", {"inputs": {"topic": "x"}}, headers=key).json()["kickoff_id"]
    for kickoff_id in (over, waiting, kept):
        client.until(kickoff_id, "pending")
    for kickoff_id in (over, kept):
        client.resume(kickoff_id)
        client.until(kickoff_id, "completed")
    database = Database(str(tmp_path / "service.db"))
    assert retention.forget_old(database, before=time.time() - 60) == 0
    assert retention.forget_old(database, before=time.time() + 60) == 2
    database.close()
    assert client.get(f"/status/{over}").status_code == 404
    assert client.status(waiting)["status"] == "pending"
    with sqlite3.connect(tmp_path / "service.db") as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("executions", "answers")]
        results = connection.execute("SELECT DISTINCT execution_id FROM results").fetchall()
    assert (counts, results) == ([1, 0], [(waiting,)])


def test_large_old_executions_are_deleted_in_short_transactions(tmp_path: Path) -> None:
    opened, large = Database(str(tmp_path / "x.db")), "x" * 2_000_000
    for number in range(60):
        put(opened, str(number), output=large, last_task={"output": large}, aged_from=1.0)
    moments: list[float] = []

    def is_stopping() -> bool:
        """Asked between transactions."""
        moments.append(time.monotonic())
        return False

    assert retention.forget_old(opened, before=2.0, is_stopping=is_stopping) == 60
    opened.close()
    longest = max(later - earlier for earlier, later in pairwise(moments))
    assert longest < 0.5 * (moments[-1] - moments[0])


def test_the_database_is_in_wal_mode_and_syncs_every_commit(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "x.db"))
    with database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
    database.close()


def test_only_its_owner_reads_the_database_since_it_holds_credentials(tmp_path: Path) -> None:
    Database(str(tmp_path / "x.db")).close()
    assert (tmp_path / "x.db").stat().st_mode & 0o077 == 0


def test_a_database_error_does_not_reveal_the_values_being_stored(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "x.db"))
    row: dict[str, Any] = {"id": "a", "kickoff_id": "a", "created_at": 0, "updated_at": 0, "due_at": 0, "inputs": {}}
    row["webhooks"] = {"human_input": {"authentication": {"token": "hook-secret"}}}
    with database.writing() as connection:
        queries.create(connection, **row)
    with database.writing() as connection, pytest.raises(IntegrityError) as caught:
        queries.create(connection, **row)
    assert "hook-secret" not in str(caught.value)
    database.close()


def test_a_database_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    Database(str(tmp_path / "x.db")).close()
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("PRAGMA user_version=999")
    with pytest.raises(DatabaseUnusable, match="a different version"):
        Database(str(tmp_path / "x.db"))


def test_an_execution_that_nobody_runs_is_found_and_goes_on(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RECOVERY", 0.1)
    client = serve()
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    database = Database(str(tmp_path / "service.db"))
    with database.writing() as connection:  # as after an end that could not be written
        connection.exec_driver_sql("UPDATE executions SET state = 'running', gate = NULL")
    database.close()
    client.until(kickoff_id, "pending")


@pytest.fixture
def read_once_in_vain() -> Iterator[list[str]]:
    """Fail the first read by the thread that claims executions, as a driver does; return what it wanted to read."""
    failed: list[str] = []

    def fail(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        is_start = threading.current_thread().name == "dispatcher" and "executions.inputs" in statement
        if is_start and not failed:
            failed.append(statement)
            raise OperationalError(statement, None, sqlite3.OperationalError("disk I/O error"))

    event.listen(Engine, "before_cursor_execute", fail)
    yield failed
    event.remove(Engine, "before_cursor_execute", fail)


def test_a_start_failed_by_the_database_resumes_once_it_answers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, read_once_in_vain: list[str]
) -> None:
    monkeypatch.setattr(runner, "RECOVERY", 86400.0)
    client = serve(PLAIN)
    client.until(client.kickoff(), "completed")
    assert read_once_in_vain


REFUSALS = {
    "sqlite": ["CREATE TRIGGER refuse BEFORE INSERT ON results BEGIN SELECT json('['); END"],
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'stack depth limit exceeded' USING ERRCODE = '54001'; END$$",
        "CREATE TRIGGER refuse BEFORE INSERT ON results FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
}


def test_an_unstorable_value_fails_its_execution_without_causing_an_outage(serve: Serve, database: str) -> None:
    client = serve(PLAIN, db=database, workers=1)
    engine = create_engine(database)
    with engine.begin() as connection:
        for statement in REFUSALS[engine.dialect.name]:
            connection.exec_driver_sql(statement)
    engine.dispose()
    for kickoff_id in (client.kickoff(), client.kickoff()):
        client.until(kickoff_id, "error")
    assert client.get("/readyz").status_code == 200


def test_another_database_url_works_too(serve: Serve, tmp_path: Path) -> None:
    client = serve(PLAIN, db=f"sqlite+pysqlite:///{tmp_path}/by-url.db")
    client.until(client.kickoff(), "completed")


@pytest.mark.parametrize("database", ["nonsense://x", "postgresql+nodriver://x/y", "/dev/null/x.db"])
def test_a_database_that_cannot_be_opened_is_named(database: str) -> None:
    with pytest.raises(DatabaseUnusable, match=re.escape(database)):
        Database(database)


def run(scenario: dict[str, Any], **job: Any) -> tuple[Any, list[crew.Progress]]:
    reports: list[crew.Progress] = []
    return ScriptedCrew(scenario).run(crew.Job("id", **job), reports.append), reports


def test_placeholders_are_filled_in_one_pass() -> None:
    scenario = {"inputs": ["a", "b"], "tasks": [{"id": "t", "output": "{a}|{b}|{c}|{revision}|{feedback}|{}"}]}
    outcome, _ = run(scenario, inputs={"a": "{b}{revision}", "b": [1, {"x": None}]})
    assert outcome.output == '{b}{revision}|[1, {"x": null}]|{c}|1||{}'


def test_feedback_is_text_that_is_never_filled_again() -> None:
    scenario = {"tasks": [{"id": "t", "human_input": True, "output": "x", "revised": "{revision}: {feedback}"}]}
    rounds = (crew.Round("x", "first"), crew.Round("y", "{revision} {feedback}"))
    decision = crew.ReviewDecision("t", is_approve=False, rounds=rounds, state={"seconds": 1.0})
    outcome, _ = run(scenario, inputs={}, decision=decision)
    assert outcome.output == "3: {revision} {feedback}"


def test_a_scripted_task_reports_its_end_with_what_follows() -> None:
    _, reports = run({"tasks": [{"id": "a", "output": "x"}, {"id": "b", "output": "y"}]}, inputs={})
    begun, first, last = reports
    assert begun == crew.TaskStarted("a", "Agent")
    assert isinstance(first, crew.TaskDone)
    assert isinstance(last, crew.TaskDone)
    assert [done.step and done.step.result for done in (first, last)] == ["x", "y"]
    assert (first.following, last.following) == (crew.TaskStarted("b", "Agent"), None)


def test_the_demo_is_a_scenario_with_one_gate() -> None:
    crew = ScriptedCrew(DEMO)
    assert (crew.required, crew.inputs) == (["topic"], ["topic", "review"])
    assert [task.human_input for task in crew.tasks] == [False, False, True]


def test_a_gate_can_be_left_out_by_an_input() -> None:
    scenario = {"tasks": [{"id": "t", "human_input": "review", "output": "x"}]}
    outcomes = {no: type(run(scenario, inputs={"review": no})[0]) for no in (False, "no", "false", True, "yes")}
    assert [word for word, kind in outcomes.items() if kind is crew.PendingReview] == [True, "yes"]
    assert isinstance(run(scenario, inputs={})[0], crew.PendingReview)


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (queries.status_query(("state",)), "sqlite_autoindex_executions_2"),
        (queries.finders(queries.HEAD)[1], "sqlite_autoindex_executions_1"),
        (
            select(executions.c.id).where(executions.c.state == "queued", executions.c.due_at <= 1.0),
            "executions_by_turn",
        ),
        (select(executions.c.id).order_by(executions.c.created_at.desc()).limit(9), "executions_by_age"),
        (
            select(executions.c.id)
            .where(executions.c.crew == "", executions.c.state == "queued", executions.c.due_at <= 1.0)
            .order_by(executions.c.due_at),
            "executions_by_turn",
        ),
        (
            select(executions.c.id).where(executions.c.crew == "").order_by(executions.c.created_at.desc()).limit(9),
            "executions_by_crew",
        ),
        (
            select(executions.c.id)
            .where(executions.c.crew == "", executions.c.state == "waiting")
            .order_by(executions.c.created_at.desc())
            .limit(9),
            "executions_by_state",
        ),
        (select(executions.c.id).where(executions.c.claimed_by == "x"), "executions_by_process"),
        (select(executions.c.id).where(executions.c.ended_at < 1.0), "executions_by_end"),
        (select(executions.c.state, func.count()).group_by(executions.c.state), "executions_by_turn"),
    ],
)
def test_no_question_reads_the_whole_table_however_much_is_stored(tmp_path: Path, query: Any, index: str) -> None:
    database = Database(str(tmp_path / "x.db"))
    with database.reading() as connection:
        text = str(query.compile(connection.engine))
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", (1,) * text.count("?")).all()
    database.close()
    assert index in plan[0][-1], plan
    assert not [step for step in plan if "TEMP B-TREE" in step[-1]], plan


FIRST = {"id": "new_task", "output": "New"}
CHANGES = {
    "a task before a finished one": (
        [FIRST, *GATED["tasks"]],
        "this execution has finished research_task, but the crew begins with new_task.",
    ),
    "the task that a person decided on": (
        [GATED["tasks"][0], {**GATED["tasks"][1], "id": "letter_task"}, GATED["tasks"][2]],
        "its tasks no longer match the decision on draft_task.",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_crew_changed_while_it_waited_ends_in_words(tmp_path: Path, change: str) -> None:
    tasks, reason = CHANGES[change]
    with running_service(scenario=GATED, db=tmp_path / "x.db") as service:
        client = Client(service.url, service.token)
        kickoff_id = client.kickoff()
        client.until(kickoff_id, "pending")
    with running_service(scenario={**GATED, "tasks": tasks}, db=tmp_path / "x.db", token="t" * 20) as service:
        client = Client(service.url, service.token)
        assert client.resume(kickoff_id).ok
        ended = eventually(lambda: (found := client.status(kickoff_id))["status"] != "running" and found, "the end")
    assert (ended["status"], ended.get("error")) == ("error", f"The crew has changed: {reason}")
