"""Rows S8 and S12: a database that cannot be used for a while costs a 503 and some time, and no execution."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import requests
from crew_client import Client, Command, Receiver, eventually

from crew_service.cli import main
from crew_service.storage.database import Database
from scripts.stack.database import ThrowAwayDatabase
from scripts.stack.waiting import FACTOR, PATIENCE

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-20-letters"
SCENARIO = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "first", "agent": "A", "seconds": 3.0, "output": "First on {topic}"},
        {"id": "draft_task", "agent": "B", "seconds": 0.5, "human_input": "review", "output": "Draft on {topic}"},
        {"id": "last", "agent": "C", "seconds": 0.5, "output": "All on {topic}"},
    ],
}
NO_REVIEW = {"inputs": {"topic": "AI", "review": "no"}}
SQL = ("SELECT", "INSERT", "UPDATE", "sqlite3", "psycopg", "sqlalche.me", "executions.")


@pytest.fixture
def start(command: Callable[..., Command], tmp_path: Path) -> Callable[..., Command]:
    (tmp_path / "crew.json").write_text(json.dumps(SCENARIO))

    def start(database: str) -> Command:
        return command("--crew", "crew.json", "--token", TOKEN, "--db", database)

    return start


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def refusal(client: Client, path: str = "/kickoff") -> str | None:
    """The sentence of a 503; None when the request is served."""
    answer = client.post(path, NO_REVIEW) if path == "/kickoff" else client.get(path)
    if answer.status_code == 200:
        return None
    assert answer.status_code == 503, answer.text
    assert not [word for word in SQL if word.lower() in answer.text.lower()], answer.text
    return answer.json()["detail"]


def troubled_lines(service: Command) -> list[dict[str, Any]]:
    lines = service.log.read_text().splitlines()[1:]
    return [line for line in map(json.loads, lines) if line["level"] in ("warning", "error")]


def back_up(database: Path, copy: Path) -> None:
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def the_service_mends(client: Client, kickoffs: list[str]) -> None:
    eventually(lambda: client.get("/healthz").status_code == 200, "health")
    for kickoff_id in [*kickoffs, client.kickoff(**NO_REVIEW)]:
        eventually(lambda kickoff_id=kickoff_id: client.status(kickoff_id)["status"] == "completed", "the end")


def full(folder: Path) -> Callable[[], None]:
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 65536):
            pass
    return filler.unlink


@pytest.mark.long
@pytest.mark.row("S8")
def test_a_full_disk_is_reported_and_work_resumes_once_freed(
    start: Callable[..., Command], small_disk: Path, receiver: Receiver
) -> None:
    service = start(str(small_disk / "x.db"))
    client = service.client(TOKEN)
    hooked = {**NO_REVIEW, "stepWebhookUrl": f"{receiver.url}/step", "taskWebhookUrl": f"{receiver.url}/task"}
    kickoffs = [client.post("/kickoff", hooked).json()["kickoff_id"] for _ in range(8)]
    make_room = full(small_disk)
    detail = eventually(lambda: refusal(client), "the 503")
    assert detail == "The database cannot be written to: the disk is full."
    health = eventually(lambda: refusal(client, "/healthz"), "the truth of /healthz")
    assert health == "The database cannot be written to: the disk is full."
    size = service.log.stat().st_size
    sent = len(receiver.taken)
    time.sleep(2)  # long enough for a loop without pauses to show
    assert refusal(client, "/healthz")
    assert service.log.stat().st_size - size < 4096
    assert len(receiver.taken) - sent <= 48  # of 8 executions with 6 webhooks
    make_room()
    the_service_mends(client, kickoffs)
    assert len(troubled_lines(service)) < 6


@pytest.mark.row("S77")
def test_a_full_disk_upload_leaves_no_file_and_is_repeatable(start: Callable[..., Command], small_disk: Path) -> None:
    client = start(str(small_disk / "x.db")).client(TOKEN)

    def upload(size: int) -> requests.Response:
        return client.session.post(f"{client.url}/files", files={"file": ("a", b"x" * size)}, timeout=PATIENCE)

    assert upload(100).status_code == 200
    make_room = full(small_disk)
    refused = eventually(lambda: None if (answer := upload(1_000_000)).ok else (answer,), "the 503")[0]
    detail = "The database cannot be written to: the disk is full."
    assert (refused.status_code, refused.json()["detail"]) == (503, detail)
    make_room()
    the_service_mends(client, [])
    assert eventually(lambda: upload(1_000_000).status_code == 200, "room for a file")


@pytest.mark.long
@pytest.mark.row("S8")
@pytest.mark.parametrize("come_back", ["moved", "copied"])
def test_a_moved_database_file_is_reported(start: Callable[..., Command], tmp_path: Path, come_back: str) -> None:
    service = start("x.db")
    client = service.client(TOKEN)
    kickoffs = [client.kickoff(**NO_REVIEW) for _ in range(4)]
    (tmp_path / "x.db").rename(tmp_path / "elsewhere.db")
    moved = "The database cannot be used: its file was moved."
    assert [refusal(client, path) for path in ("/kickoff", f"/status/{kickoffs[0]}")] == [moved, moved]
    assert eventually(lambda: refusal(client, "/healthz"), "the truth of /healthz") == moved
    if come_back == "moved":
        (tmp_path / "elsewhere.db").rename(tmp_path / "x.db")
    else:
        shutil.copy(tmp_path / "elsewhere.db", tmp_path / "x.db")
    the_service_mends(client, kickoffs)


@pytest.mark.long
@pytest.mark.row("S8")
def test_a_copy_is_not_opened_before_it_is_complete(start: Callable[..., Command], tmp_path: Path) -> None:
    service = start("x.db")
    client = service.client(TOKEN)
    kickoffs = [client.kickoff(**NO_REVIEW) for _ in range(4)]
    (tmp_path / "x.db").rename(tmp_path / "elsewhere.db")
    assert eventually(lambda: refusal(client, "/healthz"), "the truth of /healthz")
    content = (tmp_path / "elsewhere.db").read_bytes()
    incomplete = "The database cannot be used: its file is incomplete."
    with (tmp_path / "x.db").open("wb", buffering=0) as copy:
        for end in (0, 50, len(content) // 2, len(content) - 1):
            copy.write(content[copy.tell() : end])
            assert eventually(lambda: refusal(client, "/healthz") == incomplete, f"the refusal of {end} bytes")
            for path in ("/kickoff", f"/status/{kickoffs[0]}"):
                eventually(lambda path=path: refusal(client, path) == incomplete, path)
        copy.write(content[copy.tell() :])
    the_service_mends(client, kickoffs)


@pytest.mark.row("S8")
@pytest.mark.parametrize("line", ["mv x.db y.db && cp y.db x.db", "cp x.db y.db && mv y.db x.db"])
def test_a_copy_without_its_write_ahead_log_loses_nothing(
    start: Callable[..., Command], tmp_path: Path, line: str
) -> None:
    client = start("x.db").client(TOKEN)
    kickoffs = [client.kickoff(**NO_REVIEW) for _ in range(20)]
    subprocess.run(line, shell=True, cwd=tmp_path, check=True)
    eventually(lambda: client.get("/healthz").status_code == 200, "health")
    assert {client.get(f"/status/{kickoff_id}").status_code for kickoff_id in kickoffs} == {200}


@pytest.mark.long
@pytest.mark.row("S8")
def test_a_file_that_cannot_be_opened_gives_a_503(start: Callable[..., Command], tmp_path: Path) -> None:
    client = start("x.db").client(TOKEN)
    kickoff_id = client.kickoff(**NO_REVIEW)
    (tmp_path / "x.db").rename(tmp_path / "y.db")
    (tmp_path / "x.db").mkdir()
    refused = "The database cannot be used: its file cannot be opened."
    for path in ("/kickoff", f"/status/{kickoff_id}", "/healthz"):
        # A write that was under way may still succeed, and for a moment the database counts as healthy.
        eventually(lambda path=path: refusal(client, path) == refused, path)
    (tmp_path / "x.db").rmdir()
    (tmp_path / "y.db").rename(tmp_path / "x.db")
    the_service_mends(client, [kickoff_id])


@pytest.mark.long
@pytest.mark.row("S8")
def test_the_process_lives_while_another_one_locks_the_new_file(start: Callable[..., Command], tmp_path: Path) -> None:
    client = start("x.db").client(TOKEN)
    kickoff_id = client.kickoff(**NO_REVIEW)
    with closing(sqlite3.connect(tmp_path / "x.db")) as file:
        file.execute("VACUUM INTO ?", [str(tmp_path / "y.db")])
    with closing(sqlite3.connect(tmp_path / "y.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        (tmp_path / "y.db").replace(tmp_path / "x.db")
        with ThreadPoolExecutor(16) as pool:
            refused = list(pool.map(lambda _: refusal(client, f"/status/{kickoff_id}"), range(16)))
            assert requests.get(f"{client.url}/livez", timeout=5 * FACTOR).status_code == 200
        assert set(refused) <= {"The database is locked by another process.", "The database is busy."}
        other.execute("ROLLBACK")
    the_service_mends(client, [kickoff_id])


@pytest.mark.long
@pytest.mark.row("S8")
@pytest.mark.parametrize("words", [["list"], ["kickoff", "topic=AI"]])
def test_no_command_makes_a_database_of_an_unfinished_copy(
    start: Callable[..., Command], tmp_path: Path, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    client = start("x.db").client(TOKEN)
    kickoff_id = client.kickoff(**NO_REVIEW)
    (tmp_path / "x.db").rename(tmp_path / "y.db")
    (tmp_path / "x.db").touch()
    assert main([*words, "--db", str(tmp_path / "x.db")]) == 2
    assert "a service is using it, and the file is incomplete" in capfd.readouterr().err
    shutil.copy(tmp_path / "y.db", tmp_path / "x.db")
    the_service_mends(client, [kickoff_id])


@pytest.mark.long
@pytest.mark.row("S8")
def test_executions_of_a_restored_database_go_on_by_themselves(start: Callable[..., Command], tmp_path: Path) -> None:
    service = start("x.db")
    client = service.client(TOKEN)
    kickoffs = [client.kickoff(**NO_REVIEW) for _ in range(3)]
    with closing(sqlite3.connect(tmp_path / "x.db")) as file:
        # A queued one would be claimed, which shows that the database does not list the process.
        states = "SELECT DISTINCT state FROM executions"
        eventually(lambda: file.execute(states).fetchall() == [("running",)], "all to run")
    back_up(tmp_path / "x.db", tmp_path / "y.db")
    service.stop()
    client = start("x.db").client(TOKEN)
    for kickoff_id in kickoffs:
        client.until(kickoff_id, "completed")
    back_up(tmp_path / "y.db", tmp_path / "x.db")
    for kickoff_id in kickoffs:
        client.until(kickoff_id, "completed")


@pytest.mark.long
@pytest.mark.row("S8")
def test_a_restored_backup_is_not_mixed_with_later_changes(start: Callable[..., Command], tmp_path: Path) -> None:
    service = start("x.db")
    client = service.client(TOKEN)
    kickoffs = [client.kickoff(**NO_REVIEW) for _ in range(4)]
    back_up(tmp_path / "x.db", tmp_path / "backup.db")
    later = [client.kickoff(**NO_REVIEW) for _ in range(4)]
    with closing(sqlite3.connect(tmp_path / "newer.db")) as file:
        file.execute("PRAGMA user_version=1000")
    (tmp_path / "newer.db").replace(tmp_path / "x.db")
    other = "The database cannot be used: its file is from a different version."
    eventually(lambda: refusal(client) == other, "the refusal")  # until the file is looked at, the database is busy
    (tmp_path / "backup.db").replace(tmp_path / "x.db")
    the_service_mends(client, kickoffs)
    assert {client.get(f"/status/{kickoff_id}").status_code for kickoff_id in later} == {404}
    service.stop()
    with closing(sqlite3.connect(tmp_path / "x.db")) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.row("S8")
def test_a_read_only_sqlite_file_is_readable_but_refuses_writes(
    start: Callable[..., Command], small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = start(str(small_disk / "x.db")).client(TOKEN)
    kickoff_id = client.kickoff(**NO_REVIEW)
    subprocess.run(["mount", "--bind", str(small_disk), str(small_disk)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(small_disk)], check=True)
    try:
        for command in (["list"], ["status", kickoff_id]):
            assert main([*command, "--db", str(small_disk / "x.db")]) == 0
            assert kickoff_id in capfd.readouterr().out
        assert main(["kickoff", "topic=AI", "--db", str(small_disk / "x.db")]) == 2
        assert "The database cannot be written to: it is read-only." in capfd.readouterr().err
        assert client.get(f"/status/{kickoff_id}").status_code == 200
    finally:
        subprocess.run(["umount", "--lazy", str(small_disk)], check=True)


@pytest.mark.long
@pytest.mark.row("S8")
def test_a_read_only_postgresql_is_reported(start: Callable[..., Command], throw_away: ThrowAwayDatabase) -> None:
    service = start(throw_away.url)
    client = service.client(TOKEN)
    kickoffs = [client.kickoff(**NO_REVIEW) for _ in range(4)]
    execute(throw_away, f'ALTER DATABASE "{throw_away.name}" SET default_transaction_read_only = on', *CUT)
    assert eventually(lambda: refusal(client), "the 503") == "The database cannot be written to: it is read-only."
    assert eventually(lambda: refusal(client, "/healthz"), "the truth of /healthz")
    execute(throw_away, f'ALTER DATABASE "{throw_away.name}" SET default_transaction_read_only = off', *CUT)
    the_service_mends(client, kickoffs)


@pytest.mark.long
@pytest.mark.row("S12")
def test_executions_wait_while_another_process_locks_sqlite(start: Callable[..., Command], tmp_path: Path) -> None:
    service = start("x.db")
    client = service.client(TOKEN)
    kickoffs = [client.kickoff(**NO_REVIEW) for _ in range(6)]
    other = sqlite3.connect(tmp_path / "x.db", PATIENCE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    until = time.monotonic() + 15  # more than a busy timeout, which is what failed them
    assert eventually(lambda: refusal(client) == "The database is locked by another process.", "the reason")
    while time.monotonic() < until:
        assert all(client.status(kickoff_id)["status"] == "running" for kickoff_id in kickoffs)
        time.sleep(0.5)
    other.execute("ROLLBACK")
    other.close()
    the_service_mends(client, kickoffs)


@pytest.mark.long
@pytest.mark.row("S29")
def test_locked_sqlite_refuses_each_of_many_kickoffs_within_ten_seconds(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    client = start("x.db").client(TOKEN)

    def seconds(number: int) -> float:
        began = time.monotonic()
        assert refusal(client.holding(TOKEN)) == "The database is locked by another process."
        return time.monotonic() - began

    other = sqlite3.connect(tmp_path / "x.db", PATIENCE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with ThreadPoolExecutor(60) as pool:
        took = list(pool.map(seconds, range(60)))
    again = seconds(61)
    other.execute("ROLLBACK")
    other.close()
    the_service_mends(client, [])
    assert max(took) < 10 * FACTOR
    assert again < min(took), "what is known to be locked holds nobody up"


@pytest.mark.row("S12")
def test_a_connection_that_is_cut_during_its_ping_is_replaced(postgresql: str) -> None:
    """With psycopg, such a connection is found to be busy, which looks like a mistake in the program."""
    database = Database(postgresql)
    with database.writing() as connection:
        driver = connection.connection.dbapi_connection
        first = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    if not hasattr(driver, "pgconn"):
        return  # SQLAlchemy 1.4 uses psycopg2
    driver.pgconn.send_query(b"SELECT 1")  # as a ping whose response does not arrive
    with database.writing() as connection:
        assert connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() != first
    database.close()


@pytest.mark.long
@pytest.mark.row("S12")
def test_executions_go_on_while_postgresql_drops_their_connections(
    start: Callable[..., Command], throw_away: ThrowAwayDatabase
) -> None:
    client = start(throw_away.url).client(TOKEN)
    kickoffs: list[str] = []
    cutting = threading.Event()

    def cut() -> None:
        while not cutting.wait(0.15):
            execute(throw_away, *CUT)

    thread = threading.Thread(target=cut)
    thread.start()
    while len(kickoffs) < 30:
        answer = client.post("/kickoff", NO_REVIEW)
        assert answer.status_code in (200, 503), answer.text
        kickoffs += [answer.json()["kickoff_id"]] if answer.status_code == 200 else []
        time.sleep(0.05)
    cutting.set()
    thread.join()
    the_service_mends(client, kickoffs)


@pytest.mark.row("S12")
def test_executions_go_on_after_an_outage_of_postgresql(
    start: Callable[..., Command], throw_away: ThrowAwayDatabase
) -> None:
    service = start(throw_away.url)
    client = service.client(TOKEN)
    kickoffs = [client.kickoff(**NO_REVIEW) for _ in range(8)]
    with throw_away.gone():
        assert eventually(lambda: refusal(client), "the 503") == "The database cannot be reached."
        assert refusal(client, f"/status/{kickoffs[0]}") == "The database cannot be reached."
        time.sleep(2)
    the_service_mends(client, kickoffs)
    assert len(troubled_lines(service)) < 6


CUT = ("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()",)


def execute(database: ThrowAwayDatabase, *statements: str) -> None:
    connection = psycopg2.connect(database.server)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.format(name=database.name))
    connection.close()


@pytest.mark.row("S30")
@pytest.mark.parametrize("seconds", [15.0, pytest.param(180.0, marks=pytest.mark.long)])
def test_no_manifest_probe_restarts_a_service_while_postgresql_is_away(
    start: Callable[..., Command], throw_away: ThrowAwayDatabase, seconds: float
) -> None:
    service = start(throw_away.url)
    client = service.client(TOKEN)
    kickoffs = [client.kickoff(**NO_REVIEW) for _ in range(4)]
    alive, ready = probes()
    with throw_away.gone():
        back = time.monotonic() + seconds
        eventually(lambda: refusal(client, ready), "the truth of the readiness probe")
        while time.monotonic() < back:
            assert client.get(alive).json() == {"status": "ok"}
            assert refusal(client, ready)
            time.sleep(0.5)
    the_service_mends(client, kickoffs)
    assert client.get(ready).status_code == 200


def probes() -> list[str]:
    manifest = (Path(__file__).parents[2] / "deploy" / "crew-service.yaml").read_text()
    return [
        re.search(f"{kind}Probe:\\n *httpGet: {{path: (/[a-z]+),", manifest)[1] for kind in ("liveness", "readiness")
    ]
