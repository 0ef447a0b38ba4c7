"""Rare moments between two statements: taken over, away, resent, deep, replaced."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crew_client import Client, Receiver, waits_for_lock
from sqlalchemy import delete, event, insert, select, text, update
from stand_in_crew import StandInCrew

from crew_service.cli import main
from crew_service.engine import membership, retention
from crew_service.engine import runner as runner_module
from crew_service.engine.budgets import Budgets
from crew_service.engine.container import Process
from crew_service.engine.crew import Completed, JournalEntry, PendingQuestion, Step, StepDone, TaskDone, TokensUsed
from crew_service.engine.dead_letters import DeadLetters
from crew_service.engine.drafts import hashes_of
from crew_service.engine.executions import Executions, Start
from crew_service.engine.files import Files
from crew_service.engine.flow_webhook import FlowWebhook, FlowWebhooks
from crew_service.engine.jobs import Quota
from crew_service.engine.ledger import Ledger
from crew_service.engine.limits import Limits
from crew_service.engine.masked_arguments import BadArguments, changed
from crew_service.engine.metrics import Metrics
from crew_service.engine.outbox import Outbox
from crew_service.engine.principals import Principal
from crew_service.engine.printed import Printed
from crew_service.engine.retention import Retention
from crew_service.engine.runner import Runner
from crew_service.engine.segments import MOST_LOSSES, Segment
from crew_service.http.dialects import DIALECTS
from crew_service.prices import Prices
from crew_service.scripted_crew import DEMO, ScriptedCrew
from crew_service.settings import FileLimits, Settings
from crew_service.storage import claims, integrity, queries, questions, schema, webhooks
from crew_service.storage.availability import Availability, DatabaseUnavailable, FileUnusable
from crew_service.storage.database import Database, DatabaseUnusable
from crew_service.storage.tables import dead_letters, executions, journal, outbox, webhook_queues
from scripts.stack.waiting import FACTOR, wait_until

PATIENCE = 5.0
HOOK = {"url": "https://receiver.example/step"}
START = Step(1, "send", "", "tool", "a-key:1", "send_mail", once=True, is_awaited=True)


def queue(database: Database, execution_id: str = "x", **values: Any) -> None:
    now = database.now()
    times = {"created_at": now, "updated_at": now, "due_at": now}
    with database.writing() as connection:
        claims.register(connection, f"process of {execution_id}", host="here", alone=False, now=now)
        values = {"kickoff_id": execution_id, "crew": "", "inputs": {}, **times, **values}
        queries.create(connection, id=execution_id, **values)


def runner(database: Database, process_id: str, run: Callable[..., Any] | None = None, seconds: float = 60.0) -> Runner:
    crew: Any = SimpleNamespace(tasks=[], isolation="process", run=run)
    printed: Any = SimpleNamespace(of=Printed, write=lambda printed: None)
    where: Any = SimpleNamespace(id=process_id)
    hooks: Any = {"posted": lambda: None, "spent": lambda by_model: None, "printed": printed}
    hooks["stored_files"] = Files(database, FileLimits())
    ledger = Ledger(database, Prices())
    segment = partial(Segment, database, limits=Limits(seconds), fresh_ids=False, ledger=ledger, **hooks)
    taken = {"quota": Quota(), "budgets": Budgets(), "ledger": ledger}
    return Runner(database, where, "", crew, workers=4, segment=segment, **taken)


def claim(database: Database, process_id: str) -> list[str]:
    with database.writing() as connection:
        return claims.claim_due(connection, process_id, "", now=database.now(), limit=4) or []


def ended(database: Database) -> tuple[str, str | None]:
    with database.reading() as connection:
        row = connection.execute(select(executions.c.state, executions.c.error)).one()
    return row.state, row.error


def claimed_by_paused(folder: Path) -> Database:
    """Return a database in which one of two processes, which is about to be paused, has claimed the execution."""
    database = Database(str(folder / "x.db"))
    queue(database)
    with database.writing() as connection:
        for process_id in ("paused", "other"):
            claims.register(connection, process_id, host=process_id, alone=False, now=0.0)
    assert claim(database, "paused") == ["x"]
    return database


@pytest.mark.row("S19")
def test_an_execution_taken_over_before_loading_does_not_run(tmp_path: Path) -> None:
    database = claimed_by_paused(tmp_path)
    with database.writing() as connection:
        claims.remove_process(connection, "paused", beat=0, now=database.now())
    assert claim(database, "other") == ["x"]
    assert runner(database, "paused")._load("x") is None
    segment = runner(database, "other")._load("x")
    assert segment is not None
    segment.report(START)


@pytest.mark.row("S19")
def test_an_execution_taken_over_while_loading_goes_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = claimed_by_paused(tmp_path)
    read, others = queries.tasks_of, []

    def late(connection: Any, execution_id: str) -> list[Any]:
        """Read after the process was removed, and another one has finished a task."""
        monkeypatch.setattr(queries, "tasks_of", read)
        with database.writing() as writing:
            claims.remove_process(writing, "paused", beat=0, now=database.now())
        assert claim(database, "other") == ["x"]
        others.append(runner(database, "other")._load("x"))
        others[0].report(TaskDone({"task_id": "a", "agent": "", "output": "", "execution_time": 0.1}))
        return read(connection, execution_id)

    monkeypatch.setattr(queries, "tasks_of", late)
    assert runner(database, "paused")._load("x") is None
    others[0].report(START)
    assert ended(database) == ("running", None)


def lose(database: Database, number: int) -> None:
    """Let a process claim the execution and stop its heartbeat, `number` times."""
    for _ in range(number):
        with database.writing() as connection:
            claims.register(connection, "mortal", host="here", alone=False, now=database.now())
        assert claim(database, "mortal") == ["x"]
        with database.writing() as connection:
            assert claims.remove_process(connection, "mortal", beat=0, now=database.now()) == 1


def losses(database: Database) -> Any:
    with database.reading() as connection:
        return connection.execute(select(executions.c.losses)).scalar_one()


def test_an_execution_that_always_kills_its_service_eventually_fails(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "x.db"))
    queue(database)
    lose(database, MOST_LOSSES)
    ran: list[Any] = []
    running = runner(database, "process of x", lambda job, report: ran.append(job))
    assert claim(database, "process of x") == ["x"]
    segment = running._load("x")
    assert segment is not None
    running._run(segment)
    state, error = ended(database)
    assert (state, ran) == ("failed", [])
    assert error is not None
    assert error.startswith("10 crew service processes ended or stopped responding while running this")


def complete_tasks(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(update(executions).values(completed_tasks=5_000))


def return_from_a_call(database: Database) -> None:
    call = {"execution_id": "x", "number": 1, "task_id": "a", "part": "", "kind": "tool", "key": "k", "name": "mail"}
    with database.writing() as connection:
        connection.execute(insert(journal).values(began_at=0.0, ended_at=1.0, **call))


@pytest.fixture
def either(database: str) -> Iterator[Database]:
    """An opened database of either kind."""
    opened = Database(database)
    yield opened
    opened.close()


def test_a_loss_counts_anew_after_progress_whoever_wrote_it(either: Database) -> None:
    queue(either)
    for progress in (return_from_a_call, complete_tasks):
        lose(either, MOST_LOSSES - 1)
        assert losses(either) == MOST_LOSSES - 1
        progress(either)
    lose(either, 1)
    assert losses(either) == 1


def test_a_service_that_shuts_down_is_no_loss(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "x.db"))
    queue(database)
    for _ in range(MOST_LOSSES):
        with database.writing() as connection:
            claims.register(connection, "orderly", host="here", alone=False, now=database.now())
        assert claim(database, "orderly") == ["x"]
        with database.writing() as connection:
            claims.unregister(connection, "orderly", now=database.now())
    assert losses(database) == 0


class Away(Database):
    """Cannot be reached once: before a transaction on other releases, or after the commit of a segment's write."""

    away = lost = locked = False

    def keep_out_earlier_releases(self, oldest: str) -> None:
        if self.away:
            self.away = False
            raise DatabaseUnavailable("The database cannot be reached.")

    @contextlib.contextmanager
    def writing(self) -> Iterator[Any]:
        if self.locked:
            self.locked = False
            raise DatabaseUnavailable("The database is locked by another process.")
        with super().writing() as connection:
            yield connection
        if self.lost:
            self.lost = False
            raise DatabaseUnavailable("The database cannot be reached.")


@pytest.mark.row("S12")
def test_a_question_waits_for_the_database(tmp_path: Path) -> None:
    database = Away(str(tmp_path / "x.db"))
    queue(database)
    entry = JournalEntry(1, "send", "", "tool", "a-key:1", "send_mail", once=True)
    running = runner(
        database, "process of x", lambda job, report: PendingQuestion("tool", entry, "Ann", {}, shown="{}")
    )
    claim(database, "process of x")
    segment = running._load("x")
    assert segment is not None
    database.away = True
    running._run(segment)
    assert ended(database) == ("waiting", None)


@pytest.mark.row("S15")
@pytest.mark.parametrize(
    ("column", "value"),
    [("asked", "{broken"), ("asked", "[]"), ("gate", "{broken"), ("gate", None), ("gate", "of a kind nobody knows")],
)
def test_an_unreadable_overdue_question_blocks_no_others(tmp_path: Path, column: str, value: str | None) -> None:
    database = Database(str(tmp_path / "x.db"))
    entry = JournalEntry(1, "ask", "", "tool", "a-key:1", "ask_person")
    terms: Any = {"timeout": 0.0, "metadata": None}
    asking = PendingQuestion("question", entry, "", None, "Which tea?", of_flow=terms)
    for execution_id in ("bad", "good"):
        queue(database, execution_id)
        running = runner(database, f"process of {execution_id}", lambda job, report: asking)
        assert claim(database, f"process of {execution_id}") == [execution_id]
        segment = running._load(execution_id)
        assert segment is not None
        running._run(segment)
    with database.writing() as connection:
        if value == "of a kind nobody knows":
            gate = connection.execute(select(executions.c.gate).where(executions.c.id == "bad")).scalar_one()
            value = json.dumps({**gate, "ask": {**gate["ask"], "kind": "riddle"}})
        spoilt = text(f"UPDATE executions SET {column} = :value, answer_by = 1.0 WHERE id = 'bad'")
        connection.execute(spoilt, {"value": value})
    settings = Settings(token="x" * 20, database=str(tmp_path / "x.db"))
    process = Process(settings, {"": StandInCrew()}, DIALECTS["spec"]())
    process._expire()
    with database.reading() as connection:
        found = connection.execute(select(executions.c.state, executions.c.error).order_by(executions.c.id)).all()
    process.database.close()
    assert [tuple(each) for each in found] == [("failed", integrity.ERROR), ("queued", None)]


def test_an_answer_after_the_deadline_names_it_at_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The service, which would answer in nobody's name, is not running."""
    file = str(tmp_path / "x.db")
    database = Database(file)
    queue(database)
    entry = JournalEntry(1, "ask", "", "tool", "a-key:1", "ask_person")
    terms: Any = {"timeout": 0.0, "metadata": None}
    asking = PendingQuestion("question", entry, "", None, "Which tea?", of_flow=terms)
    running = runner(database, "process of x", lambda job, report: asking)
    claim(database, "process of x")
    segment = running._load("x")
    assert segment is not None
    running._run(segment)
    database.close()
    assert main(["resume", "x", "--answer", "Green", "--db", file]) == 1
    told = "x cannot be answered: the deadline of the question has passed. Nothing was changed.\n"
    assert capsys.readouterr().err == told


EVENTS = {"url": "https://receiver.example/events", "realtime": False}


def posted(database: Database) -> list[list[str]]:
    """Return the types of the events in each webhook."""
    with database.reading() as connection:
        bodies = connection.execute(select(outbox.c.body).order_by(outbox.c.created_at, outbox.c.id)).scalars()
        return [[each["type"] for each in json.loads(body)["events"]] for body in bodies]


def test_events_without_realtime_outlive_their_process(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "x.db"))
    queue(database, webhooks={"events": EVENTS})
    with database.writing() as connection:
        claims.register(connection, "mortal", host="here", alone=False, now=database.now())
    for process_id in ("mortal", "process of x"):
        assert claim(database, process_id) == ["x"]
        running = runner(database, process_id, lambda job, report: Completed("done"))
        segment = running._load("x")
        assert segment is not None
        segment.report(StepDone(result=process_id))
        assert posted(database) == []
        with database.writing() as connection:
            claims.remove_process(connection, "mortal", beat=0, now=database.now())
    running._run(segment)
    told = ["crew_kickoff_started", *["agent_execution_completed"] * 2, "crew_kickoff_completed"]
    assert (ended(database)[0], posted(database)) == ("completed", [told])


def test_many_events_without_realtime_are_sent_earlier(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "x.db"))
    queue(database, webhooks={"events": EVENTS})
    claim(database, "process of x")
    segment = runner(database, "process of x")._load("x")
    assert segment is not None
    for _ in range(20):
        segment.report(StepDone(result="a" * 9_000))
    sizes = [len(each) for each in posted(database)]
    assert len(sizes) > 1, sizes
    assert all(1 < size < 12 for size in sizes), sizes


@pytest.mark.row("S12")
def test_the_token_limit_ends_an_execution_despite_a_locked_database(tmp_path: Path) -> None:
    database = Away(str(tmp_path / "x.db"))
    queue(database, limits={"max_tokens": 10})
    claim(database, "process of x")
    segment = runner(database, "process of x")._load("x")
    assert segment is not None
    database.locked = True
    segment.report(TokensUsed(11, {}, {}))
    assert ended(database)[0] == "running"
    segment.enforce_limits()
    assert ended(database) == ("failed", "TokenLimitExceeded: the execution used 11 tokens; its limit is 10")


@pytest.mark.row("S12")
def test_no_report_is_accepted_after_the_ending_commit_was_lost(tmp_path: Path) -> None:
    database = Away(str(tmp_path / "x.db"))
    queue(database)
    claim(database, "process of x")
    segment = runner(database, "process of x", seconds=0.0)._load("x")
    assert segment is not None
    database.lost = True
    with pytest.raises(DatabaseUnavailable):
        segment.enforce_limits()
    with pytest.raises(Exception, match="no longer running here"):
        segment.report(START)


def test_a_webhook_that_is_sent_again_fails_no_execution(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(postgresql)
    queue(database, webhooks={"step": HOOK})
    letter = {"key": "k", "execution_id": "x", "kind": "step", "url": HOOK["url"], "hook": HOOK, "body": "{}"}
    more = {"attempts": 20, "problem": "HTTP 500", "created_at": 0.0, "given_up_at": 0.0}
    with database.writing() as connection:
        connection.execute(insert(dead_letters).values(**letter, **more))
    put, begun, go_on = webhooks._put, threading.Event(), threading.Event()

    def slowly(*args: Any, **kwargs: Any) -> None:
        put(*args, **kwargs)
        if kwargs["key"] == "k":
            begun.set()
            go_on.wait(PATIENCE)

    monkeypatch.setattr(webhooks, "_put", slowly)

    def run(job: Any, report: Any) -> Completed:
        begun.wait(PATIENCE)
        threading.Timer(0.2, go_on.set).start()
        report(StepDone(thought="x"))
        return Completed("done")

    running = runner(database, "process of x", run)
    claim(database, "process of x")
    segment = running._load("x")
    assert segment is not None
    again = threading.Thread(target=lambda: DeadLetters(database, crew="").resend(Principal(), "k"))
    again.start()
    running._run(segment)
    again.join()
    assert ended(database) == ("completed", None)
    database.close()


def failures_of(**works: Callable[[], Any]) -> list[Exception]:
    """Do the work of several processes at once, each in a thread of its name."""
    failures: list[Exception] = []

    def tried(work: Callable[[], Any]) -> None:
        try:
            work()
        except DatabaseUnavailable as error:
            failures.append(error)

    threads = [threading.Thread(target=tried, args=[work], name=name) for name, work in works.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_an_answer_and_a_finished_webhook_delivery_do_not_deadlock(postgresql: str) -> None:
    database = Database(postgresql)
    queue(database)
    with database.writing() as connection:
        webhooks.post(connection, "x", "human_input", HOOK, {}, now=0.0)
        connection.execute(update(webhook_queues).values(claimed_by="p"))
        queue_id = connection.execute(select(webhook_queues.c.id)).scalar_one()
    held, deleted = threading.Event(), threading.Event()

    def settle() -> None:
        with database.writing() as connection:
            webhook = webhooks.first(connection, queue_id)
            webhooks.hold(connection, queue_id, "p")
            held.set()
            deleted.wait(0.5)
            webhooks.remove(connection, webhook)  # type: ignore[arg-type]
            webhooks.release(connection, queue_id, due_at=0.0)

    def answer() -> None:
        held.wait(PATIENCE)
        with database.writing() as connection:
            sent = lambda *args: deleted.set() if args[2].startswith("DELETE FROM outbox") else None  # noqa: E731
            event.listen(connection, "after_cursor_execute", sent)
            webhooks.withdraw_question(connection, "x")

    assert failures_of(settle=settle, answer=answer) == []
    database.close()


def test_resending_a_webhook_and_deleting_its_execution_do_not_deadlock(postgresql: str) -> None:
    database = Database(postgresql)
    queue(database, aged_from=1.0)
    with database.writing() as connection:
        webhooks.post(connection, "x", "task", HOOK, {}, now=0.0, key="letter")
        webhook = connection.execute(select(outbox)).one()
        where = connection.execute(select(webhook_queues)).one()
        webhooks.give_up(connection, webhook, where, "HTTP 500", now=0.0)
        connection.execute(delete(webhook_queues))
    deleting, locked = threading.Event(), threading.Event()

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE FROM dead_letters") and threading.current_thread().name == "retention":
            deleting.set()
            locked.wait(0.5)
        elif "FOR UPDATE" in statement and threading.current_thread().name == "resend":
            locked.set()

    event.listen(database._engines.writer, "after_cursor_execute", note)

    def resend() -> None:
        deleting.wait(PATIENCE)
        DeadLetters(database).resend(Principal(), "letter")

    assert failures_of(retention=lambda: retention.forget_old(database, before=2.0), resend=resend) == []
    database.close()


def test_a_webhook_posted_to_an_ending_queue_is_not_lost(postgresql: str) -> None:
    """The queue is empty because a process that was taken for dead has delivered its last webhook after all."""
    database = Database(postgresql)
    queue(database)
    with database.writing() as connection:
        webhooks.post(connection, "x", "task", HOOK, {}, now=0.0)
        connection.execute(delete(outbox))
        connection.execute(update(webhook_queues).values(claimed_by="process of x"))
    where: Any = SimpleNamespace(id="process of x")
    sender = Outbox(database, where, Metrics({}), timeout=1.0, attempts=1)
    claimed = sender._claim()[0]
    thread = threading.Thread(target=sender._first, args=[claimed])
    with database.writing() as connection:
        webhooks.post(connection, "x", "task", HOOK, {}, now=0.0)
        thread.start()
        wait_until(lambda: waits_for_lock(connection), "its end")
    thread.join()
    with database.reading() as connection:
        assert connection.execute(select(webhook_queues.c.claimed_by)).all() == [(None,)]
    database.close()


def test_a_question_stopped_while_it_is_announced_asks_nobody(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(postgresql)
    asked = {"task_id": "t", "key": "t", "output": "o", "agent": "", "state": {}, "rounds": [], "question_id": "q"}
    queue(database)
    with database.writing() as connection:
        connection.execute(update(executions).values(state="waiting", gate=asked))
        questions.ask(connection, "q", "x", now=1.0)
    stop = threading.Thread(target=Executions(database).stop, args=[Principal(), "x"])

    def body(question_id: str, row: Any) -> dict[str, Any]:
        stop.start()
        with database.reading() as connection:
            wait_until(lambda: not stop.is_alive() or waits_for_lock(connection), "the stop")
        return {"id": question_id}

    webhook = FlowWebhook("https://receiver.example/flow", "secret", "https://service.example")
    announcing = FlowWebhooks(database, webhook, lambda: None)
    monkeypatch.setattr(announcing, "_body", body)
    announcing._announce()
    stop.join()
    with database.reading() as connection:
        assert connection.execute(select(outbox)).all() == []
        assert connection.execute(select(executions.c.state)).scalar() == "stopped"
    database.close()


def test_a_question_answered_before_its_webhook_is_no_outage(
    serve: Callable[..., Client], receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answered = threading.Event()
    read = webhooks.address_of

    def address_of(connection: Any, queue_id: str) -> Any:
        if not answered.is_set():
            client.until(kickoff_id, "pending")
            assert client.resume(kickoff_id).ok
            answered.set()
        return read(connection, queue_id)

    monkeypatch.setattr(webhooks, "address_of", address_of)
    caplog.set_level("INFO", "crew_service.engine.outbox")
    client = serve()
    kickoff_id = client.kickoff(humanInputWebhook={"url": f"{receiver.url}/asked"})
    client.until(kickoff_id, "completed")
    assert answered.is_set()
    assert receiver.taken == []
    assert "The database" not in caplog.text
    assert "webhook delivered" not in caplog.text
    assert 'kind="human_input"' not in client.get("/metrics").text


@pytest.mark.long
@pytest.mark.row("S31")
def test_a_killed_earlier_release_does_not_block_a_new_service(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "DEAD_AFTER", FACTOR)
    database = Database(postgresql)
    killed = "INSERT INTO processes (id, beat, host, started_at) VALUES ('killed', 41, 'elsewhere', 0)"
    with database.writing() as connection:
        connection.execute(text(killed))
    settings = Settings(token="x" * 20, database=postgresql, oldest_release=schema.WITH_RULES)
    Process(settings, {"": ScriptedCrew(DEMO)}, DIALECTS["spec"]()).database.close()
    with database.writing() as connection:
        connection.execute(text("UPDATE releases SET oldest = '0011'"))
        connection.execute(text(killed))
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.05):
            with database.writing() as connection:
                claims.beat(connection, "killed")

    alive = threading.Thread(target=live)
    alive.start()
    try:
        with pytest.raises(DatabaseUnusable, match="A service of an earlier release is using"):
            Process(settings, {"": ScriptedCrew(DEMO)}, DIALECTS["spec"]())
    finally:
        over.set()
        alive.join()
    database.close()


def test_one_owners_long_queue_does_not_delay_other_owners(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "x.db"))
    now = database.now()
    for number in range(20):
        queue(database, f"ann {number}", owner="ann", due_at=now - 60 + number)
    queue(database, "bob", owner="bob", due_at=now - 1)
    assert "bob" in claim(database, "process of bob")


@pytest.mark.row("S11")
@pytest.mark.parametrize("depth", [600, 5_000])  # Python 3.11 reads 600 and cannot write them, 3.13 can do both
def test_deeply_nested_json_from_a_review_is_read_or_refused(depth: int) -> None:
    deep = '{"a":' + "[" * depth + "]" * depth + "}"
    is_hashed = hashes_of(deep)["object_sha256"] is not None
    try:
        is_read = "a" in changed(deep, {}, {})
    except BadArguments:
        is_read = False
    assert (is_hashed, is_read) in {600: [(False, False), (True, True)], 5_000: [(False, False)]}[depth]


def test_a_start_empties_the_wal_that_a_killed_service_left(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "x.db"))
    Retention(database, keep_days=1.0)._step()
    assert (tmp_path / "x.db-wal").stat().st_size == 0


@pytest.mark.parametrize("aged_from", [0.0, None], ids=["old", "of an earlier release"])
def test_stopping_does_not_wait_for_a_retention_round_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aged_from: float | None
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 1)
    database = Database(str(tmp_path / "x.db"))
    values = {"state": "completed", "inputs": {}, "asked": [], "ended_at": 0.0, "aged_from": aged_from}
    values |= dict.fromkeys(("created_at", "due_at", "updated_at"), 0.0)
    with database.writing() as connection:
        rows = [{**values, "id": str(number), "kickoff_id": str(number)} for number in range(2_000)]
        connection.execute(insert(executions), rows)

    def left() -> int:
        untouched = executions.c.aged_from.is_(None) if aged_from is None else executions.c.aged_from == 0.0
        with database.reading() as connection:
            return len(connection.execute(select(executions.c.id).where(untouched)).all())

    deleting = Retention(database, keep_days=1.0)
    deleting.start()
    wait_until(lambda: left() < 2_000, "the first batch", pause=0.01)
    deleting.stop()
    assert left() > 0
    database.close()


@pytest.mark.row("S8")
def test_a_failure_keeps_its_sentence_although_another_thread_writes_meanwhile() -> None:
    availability = Availability()

    class Writes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            availability.works()

    logger, handler = logging.getLogger("crew_service.storage.availability"), Writes(logging.ERROR)
    logger.addHandler(handler)
    try:
        failed = availability.failed(FileUnusable("the database file was moved away"))
    finally:
        logger.removeHandler(handler)
    assert failed == "The database cannot be used: its file was moved."


@pytest.mark.row("S22")
def test_a_replaced_database_file_still_peeks_at_small_rows_only(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "x.db"))
    if not database.peeks_at_small:
        pytest.skip("needs Python 3.11")
    queue(database, inputs={"a": "x" * 100_000})
    database.forget_erased()
    shutil.copy(tmp_path / "x.db", tmp_path / "copy.db")
    os.replace(tmp_path / "copy.db", tmp_path / "x.db")
    with database.reading():
        pass
    assert database.peek(queries.status_query(("inputs",)), "x") is None


def test_all_unresponsive_crews_share_one_grace_period_at_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "GRACE", FACTOR)
    go_on, crews = threading.Event(), [str(number) for number in range(5)]

    class Deaf(StandInCrew):
        def run(self, job: Any, report: Any) -> Completed:
            go_on.wait()
            raise AssertionError("too late")

    process = Process(
        Settings(token="x" * 20, database=str(tmp_path / "x.db")),
        {name: Deaf() for name in crews},
        DIALECTS["spec"](),
    )
    process.start()
    for name in crews:
        process.crews[name].executions.kickoff(Principal(), Start({"topic": "tea"}), None)
    wait_until(lambda: all(crew.runner.is_busy for crew in process.crews.values()), "five executions")
    began = time.monotonic()
    process.stop()
    took = time.monotonic() - began
    go_on.set()
    assert FACTOR <= took < 3 * FACTOR  # one after the other, it would be five times
