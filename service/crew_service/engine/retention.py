"""Deletes executions that ended more than `keep_days` ago, unused uploads, and erased secrets in the database's log.

Where crews shall not remember for ever, it also lets them forget.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, exists, select, update
from sqlalchemy.sql import Select

from crew_service.engine.background import Background
from crew_service.engine.files import KEPT_UNUSED
from crew_service.storage import chains, counts, files
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database
from crew_service.storage.tables import answers, dead_letters, executions, outbox, questions, results
from crew_service.storage.tables import files as stored_files

log = logging.getLogger(__name__)

TICK = 0.5  # seconds until erased secrets are also gone from the log
PAUSE = 60.0  # seconds between searches for old executions
MEMORY_PAUSE = 3600.0  # seconds between searches of crews' memory, which need a process for each crew
LONGEST = 3600.0  # maximum seconds for a round
AT_ONCE = 500  # executions changed in one transaction
LONGEST_WRITE = 0.05  # seconds until it ends earlier, because large executions take long and kickoffs wait meanwhile

PIECES = 3  # of files, of 1 MiB each, deleted in one transaction

# Built once: building a statement costs several times as much as running it.
IDS: Any = bindparam("ids", expanding=True)
NOTE = update(executions).where(executions.c.id.in_(IDS)).values(aged_from=bindparam("now"))
CONTINUED = select(executions.c.id, executions.c.continued_from).where(executions.c.id.in_(IDS))
FORGET = [
    delete(column.table).where(column.in_(IDS))
    for column in (*(table.c.execution_id for table in (results, answers, questions, dead_letters)), executions.c.id)
]


class Retention:
    def __init__(
        self, database: Database, *, keep_days: float, forget_memory: Callable[[], None] | None = None
    ) -> None:
        self._database = database
        self._keep_seconds = keep_days * 86400
        self._forget_memory = forget_memory
        self._next_round = self._next_of_memory = 0.0
        self.loop = Background("retention", self._step, pause=TICK, behind=LONGEST)
        self.start = self.loop.start
        self.stop = self.loop.stop

    def _step(self) -> None:
        self._erase()
        if time.monotonic() > self._next_round:
            self._next_round = time.monotonic() + PAUSE
            now = self._database.now()
            note_ends(self._database, now=now, is_stopping=self._is_stopping)
            forget_old(self._database, before=now - self._keep_seconds, is_stopping=self._is_stopping)
            forget_unused_files(self._database, before=now - KEPT_UNUSED, is_stopping=self._is_stopping)
            add_up_counts(self._database, is_stopping=self._is_stopping)
        if self._forget_memory and time.monotonic() > self._next_of_memory:
            self._next_of_memory = time.monotonic() + MEMORY_PAUSE
            self._forget_memory()

    def _is_stopping(self) -> bool:
        """Return whether to stop; checked after each transaction, because a service that stops slowly may be killed."""
        return self.loop.is_stopping

    def _erase(self) -> None:
        if self._database.erased.is_set():
            self._database.erased.clear()
            try:
                done = self._database.forget_erased()
            except DatabaseUnavailable:
                done = False
            if not done:
                self._database.erased.set()


def _never() -> bool:
    return False


def note_ends(database: Database, *, now: float, is_stopping: Callable[[], bool] = _never) -> None:
    """Start the retention period now for executions ended by an earlier release, which used its own machine's clock."""
    unknown = (executions.c.aged_from.is_(None), executions.c.ended_at.is_not(None))
    some = select(executions.c.id).where(*unknown).limit(AT_ONCE)
    has_more = True
    while has_more and not is_stopping():
        with database.writing() as connection:
            ids = list(connection.execute(some).scalars())
            has_more = bool(ids)
            for some_ids in _for_a_moment(database, ids):
                connection.execute(NOTE, {"ids": some_ids, "now": now})


def add_up_counts(database: Database, *, is_stopping: Callable[[], bool] = _never) -> None:
    """Keep the number of counter rows small; SQLite has one writer, which updates the counters directly."""
    more = not database.is_sqlite
    while more and not is_stopping():
        with database.writing() as connection:
            more = counts.add_up(connection)


def forget_old(database: Database, *, before: float, is_stopping: Callable[[], bool] = _never) -> int:
    """Delete executions that ended before this time and have no pending webhooks; return their number.

    Also delete responses that belong to no execution, based on their own age.
    """
    with database.writing() as connection:
        connection.execute(delete(answers).where(answers.c.execution_id.is_(None), answers.c.created_at < before))
    _forget_pieces(database, before, is_stopping)
    count = 0
    while not is_stopping() and (deleted := _forget_some(database, before)):
        count += deleted
    if count:
        log.info("deleted old executions, count=%d", count)
    return count


def forget_unused_files(database: Database, *, before: float, is_stopping: Callable[[], bool] = _never) -> None:
    """Delete uploads that no execution has used, complete or not."""
    has_more = True
    while has_more and not is_stopping():
        with database.writing() as connection:
            ids = files.unused_since(connection, before, most=AT_ONCE)
            has_more = bool(ids)
            for some in _for_a_moment(database, ids):
                files.discard(connection, some)


def _old(before: float) -> Select[Any]:
    delivered = ~exists().where(outbox.c.execution_id == executions.c.id)
    return select(executions.c.id).where(executions.c.aged_from < before, delivered)


def _forget_pieces(database: Database, before: float, is_stopping: Callable[[], bool]) -> None:
    """Delete the content of their files first: SQLite overwrites it, and kickoffs would wait for seconds."""
    of = select(stored_files.c.id).where(stored_files.c.execution_id.in_(_old(before)))
    more = database.is_sqlite
    while more and not is_stopping():
        with database.writing() as connection:
            more = files.delete_pieces(connection, of, most=PIECES)


def _forget_some(database: Database, before: float) -> int:
    query = _old(before).limit(AT_ONCE)
    # Locked first, as by everybody else who changes what belongs to an execution: otherwise, each could wait for the
    # other. Those that another process is deleting are left to it.
    query = query.with_for_update(skip_locked=True)
    deleted = {}
    with database.writing() as connection:
        for ids in _for_a_moment(database, connection.execute(query).scalars().all()):
            deleted.update({row.id: row.continued_from for row in connection.execute(CONTINUED, {"ids": ids})})
            for statement in FORGET:
                connection.execute(statement, {"ids": ids})
        chains.close_gaps(connection, deleted)
    return len(deleted)


def _for_a_moment(database: Database, ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids: on SQLite, which has one writer, one by one until the transaction has taken its time."""
    size, until = 1 if database.is_sqlite else len(ids) or 1, time.monotonic() + LONGEST_WRITE
    for begin in range(0, len(ids), size):
        yield ids[begin : begin + size]
        if time.monotonic() > until:
            return
