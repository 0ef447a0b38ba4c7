"""Writers of one process: they wait in the order in which they came, and on SQLite they share a commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database
from crew_service.storage.writer_turn import Busy, Turns

WITHIN = 20.0


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


class Writers:
    """Threads that write to one database; the first one holds its transaction open until all others wait for it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.database = Database(str(folder / "x.db"))
        self.commits = 0
        with self.database.writing() as connection:
            connection.execute(text("CREATE TABLE written (number INTEGER)"))
        event.listen(self.database._engines.writer, "commit", self._count)

    def _count(self, connection: Any) -> None:
        self.commits += 1

    def write(self, number: int, then: Callable[[Any], None] = lambda connection: None) -> None:
        with self.database.writing() as connection:
            connection.execute(text("INSERT INTO written VALUES (:number)"), {"number": number})
            then(connection)

    def together(self, *others: Callable[[Any], None]) -> list[Future[None]]:
        """Write 0, and meanwhile 1, 2, ... with what each does after it."""
        queue = self.database._turn._turns._waiting
        all_wait = threading.Event()
        with ThreadPoolExecutor() as pool:
            tasks = [pool.submit(self.write, 0, lambda connection: until(all_wait.is_set))]
            until(lambda: self.database._turn._group is not None)
            for number, then in enumerate(others, start=1):
                tasks.append(pool.submit(self.write, number, then))
                until(lambda: len(queue) == len(tasks) - 1)
            all_wait.set()
        return tasks

    @property
    def written(self) -> list[int]:
        with self.database.reading() as connection:
            return sorted(connection.execute(text("SELECT number FROM written")).scalars())


@pytest.fixture
def writers(tmp_path: Path) -> Writers:
    return Writers(tmp_path)


def nothing(connection: Any) -> None:
    """Only write."""


def stumble(connection: Any) -> None:
    raise KeyError("stumbled")


def lose_the_transaction(connection: Any) -> None:
    """Do what SQLite does, for example, when the disk is full."""
    connection.exec_driver_sql("ROLLBACK")


@pytest.mark.row("S20")
def test_writers_that_wait_for_each_other_share_a_commit(writers: Writers) -> None:
    for task in writers.together(nothing, nothing, nothing):
        task.result()
    assert (writers.written, writers.commits) == ([0, 1, 2, 3], 1)


def test_an_error_of_one_writer_undoes_only_what_it_wrote(writers: Writers) -> None:
    first, failed, last = writers.together(stumble, nothing)
    with pytest.raises(KeyError, match="stumbled"):
        failed.result()
    assert (first.result(), last.result(), writers.written) == (None, None, [0, 2])


def test_an_error_of_the_last_writer_loses_no_other_writes(writers: Writers) -> None:
    first, failed = writers.together(stumble)
    with pytest.raises(KeyError):
        failed.result()
    assert (first.result(), writers.written) == (None, [0])


@pytest.mark.row("S12")
def test_nobody_counts_as_stored_if_the_shared_transaction_is_lost(writers: Writers) -> None:
    tasks = writers.together(nothing, lose_the_transaction)
    for task in tasks:
        with pytest.raises(DatabaseUnavailable):
            task.result()
    assert writers.written == []
    writers.write(9)
    assert writers.written == [9]


def test_a_commit_that_fails_fails_for_all(writers: Writers) -> None:
    def refuse(connection: Any) -> None:
        raise RuntimeError("the commit failed")

    event.listen(writers.database._engines.writer, "commit", refuse)
    tasks = writers.together(nothing)
    event.remove(writers.database._engines.writer, "commit", refuse)
    for task in tasks:
        with pytest.raises(RuntimeError, match="the commit failed"):
            task.result()
    assert writers.written == []
    writers.write(9)
    assert writers.written == [9]


def test_the_write_ahead_log_is_emptied_between_waiting_writers_transactions(writers: Writers) -> None:
    queue = writers.database._turn._turns._waiting
    with ThreadPoolExecutor() as pool:
        with writers.database.writing() as connection:
            connection.execute(text("INSERT INTO written VALUES (0)"))
            emptied = pool.submit(writers.database.forget_erased)
            until(lambda: len(queue) == 1)
        assert emptied.result()
    assert writers.written == [0]


def test_whoever_writes_again_waits_behind_those_that_wait_already() -> None:
    turns, order = Turns(1), []

    def write(name: str) -> None:
        with turns.taken(WITHIN):
            order.append(name)

    with ThreadPoolExecutor() as pool:
        with turns.taken(WITHIN):
            tasks = []
            for number, name in enumerate(("first", "second", "third"), start=1):
                tasks.append(pool.submit(write, name))
                until(lambda number=number: len(turns._waiting) == number)
        write("again")
    assert order == ["first", "second", "third", "again"]


def test_a_writer_waits_only_so_long_and_leaves_its_place() -> None:
    turns = Turns(1)
    with turns.taken(WITHIN), pytest.raises(Busy):
        turns.take(0.01)
    with turns.taken(0.0):
        assert not turns._waiting


@pytest.mark.row("S12")
def test_a_full_disk_is_reported_to_every_rolled_back_writer(writers: Writers) -> None:
    def fill(connection: Any) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        connection.exec_driver_sql("PRAGMA cache_size = 5")
        connection.exec_driver_sql("CREATE TABLE large (data BLOB)")
        connection.exec_driver_sql("INSERT INTO large VALUES (zeroblob(3000000))")

    for task in writers.together(fill):
        with pytest.raises(DatabaseUnavailable, match="disk is full"):
            task.result()


def test_a_writers_error_awaits_the_commit_of_data_it_read(writers: Writers) -> None:
    def see(connection: Any) -> None:
        assert connection.execute(text("SELECT count(*) FROM written WHERE number = 0")).scalar() == 1
        raise KeyError("there is one already")

    tasks = writers.together(see, lose_the_transaction)
    for task in tasks:
        with pytest.raises(DatabaseUnavailable):
            task.result()
    assert writers.written == []


def test_nobody_shares_a_transaction_of_a_file_that_was_replaced(writers: Writers, tmp_path: Path) -> None:
    restored = Writers(tmp_path / "copy")
    restored.write(0)
    restored.database.close()
    with ThreadPoolExecutor() as pool:
        with writers.database.writing():
            for leftover in ("x.db-wal", "x.db-shm"):
                (tmp_path / leftover).unlink()
            (tmp_path / "copy" / "x.db").rename(tmp_path / "x.db")
            waits = pool.submit(writers.write, 1)
            until(lambda: bool(writers.database._turn._turns._waiting))
        waits.result()
    assert writers.written == [0, 1]
