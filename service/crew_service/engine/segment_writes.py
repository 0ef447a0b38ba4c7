"""A segment's writes: each is one transaction, fenced and numbered, with the webhooks and events that belong to it.

Fenced by the segment's claim, a write changes nothing once the execution has ended or is running elsewhere. Numbered,
it is applied once, even if the response to its commit is lost and it is sent again. The time that a write waits for the
database does not count as the crew's work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection, Row

from crew_service.engine import events, retrying, usage
from crew_service.engine.crew import Cancellation
from crew_service.engine.ledger import Ledger
from crew_service.engine.questions import Question
from crew_service.storage import queries, questions, states, webhooks
from crew_service.storage.database import Database

BOOKED = "booked"  # the column with all usage by model, whose increase is booked
News = tuple[str, dict[str, Any]]  # a webhook's kind and body
Store = Callable[[Connection, float], None]  # writes in a transaction, at the given time


class Result(NamedTuple):
    position: int
    task: Any
    figures: dict[str, Any]
    digest: str | None


@dataclass(frozen=True)
class Write:
    """One write.

    :param values: columns of the execution
    :param news: what to tell the receivers of webhooks and events, in order
    :param store: writes to other tables
    :param is_calm: whether the write may become visible a little later
    """

    move: states.Move = states.NOTE
    values: dict[str, Any] = field(default_factory=dict)
    news: Sequence[News] = ()
    result: Result | None = None
    question: Question | None = None
    store: Store | None = None
    is_calm: bool = False

    @property
    def is_pause(self) -> bool:
        """Whether events that were held back are due."""
        return self.move is not states.NOTE or self.result is not None


def together(writes: Sequence[Write]) -> Write:
    """Return one write for some that happened one after the other, of which at most one has a result."""
    news = [each for write in writes for each in write.news]
    stores = [write.store for write in writes if write.store]

    def store(connection: Connection, now: float) -> None:
        for each in stores:
            each(connection, now)

    values = {name: value for write in writes for name, value in write.values.items()}
    result = next((write.result for write in writes if write.result), None)
    is_calm = all(write.is_calm for write in writes)
    return Write(values=values, news=news, result=result, store=store, is_calm=is_calm)


class Writes:
    """The writes of one segment.

    :param posted: called after each write that may have stored webhooks
    """

    def __init__(
        self,
        database: Database,
        row: Row[Any],
        cancelled: Cancellation,
        posted: Callable[[], None],
        ledger: Ledger,
    ) -> None:
        self.turn = threading.Lock()  # held during a write
        self._database = database
        self._row = row
        self._cancelled = cancelled
        self._posted = posted
        self._ledger = ledger
        self._booked = usage.read(row.booked)
        self._fence = queries.Fence(row.id, row.segment, 0)
        self._calm = queries.Calm.of(row)
        self._stream = events.Stream((row.webhooks or {}).get("events"))
        self._began = time.monotonic()

    @property
    def work_seconds(self) -> float:
        """The whole execution's work time so far."""
        before: float = self._row.work_seconds
        return before + time.monotonic() - self._began

    def put(self, write: Write) -> bool:
        """Write as soon as the database accepts it; return whether the execution is still running here."""
        return self.patiently(partial(self.put_now, write))

    def patiently(self, write: Callable[[], bool]) -> bool:
        with self.turn:
            began = time.monotonic()
            written, tries = retrying.until_available(
                write, self._cancelled, lambda: self._database.availability.progressed_at
            )
            self._database.availability.progressed_at = time.monotonic()
            if tries > 1:
                self._began += time.monotonic() - began
        return written

    def put_now(self, write: Write) -> bool:
        """Write in one transaction, during the caller's turn; return True if written, now or earlier."""
        now = self._database.now()
        values = {**write.values, **({"gate": write.question.stored()} if write.question else {})}
        due, held = self._stream.parted(self._happened(write, now), is_pause=write.is_pause)
        if held != self._stream.held:
            values["webhooks"] = {**self._row.webhooks, "events": {**self._row.webhooks["events"], "held": held}}
        if write.move is not states.NOTE:
            values |= {"work_seconds": self.work_seconds}
        if write.move.target in states.OVER:
            values |= queries.ended(now)
        if write.move is states.REQUEUE:
            values["interrupted_at"] = now
        calm = self._calm.next(now) if write.is_calm else self._calm
        values |= calm.values if write.is_calm else {}
        with self._database.writing() as connection:
            if queries.write_fenced(connection, self._fence, write.move, now=now, **values):
                self._put_rest(connection, write, due, now)
                if BOOKED in values:
                    self._ledger.book(connection, self._row, self._booked, values[BOOKED], now)
            elif not queries.was_written(connection, self._fence, write.move):
                return False
        self._stream.held = held
        self._booked = values.get(BOOKED, self._booked)
        self._fence, self._calm = self._fence._replace(writes=self._fence.writes + 1), calm
        if self._row.webhooks or write.question:
            self._posted()
        return True

    def _put_rest(self, connection: Connection, write: Write, due: list[events.Event], now: float) -> None:
        execution_id = self._row.id
        if write.result is not None:
            queries.add_result(connection, execution_id, *write.result)
        if write.store is not None:
            write.store(connection, now)
        if question := write.question:
            number = len(write.values["asked"])
            questions.open_round(connection, execution_id, number, question.round_values, now=now)
            if question.question_id:
                questions.ask(connection, question.question_id, execution_id, now=now)
        hooks = self._row.webhooks or {}
        for kind, body in write.news:
            if hook := hooks.get(kind):
                full = {**body, "kickoff_id": self._row.kickoff_id, "meta": self._row.meta}
                webhooks.post(connection, execution_id, kind, hook, full, now=now)
        if due:
            webhooks.post(connection, execution_id, "events", hooks["events"], events.body(execution_id, due), now=now)

    def _happened(self, write: Write, now: float) -> list[events.Event]:
        if self._stream.hook is None:
            return []
        is_first = not self._row.had_begun and self._fence.writes == 0
        start = [events.started(self._row.inputs, now=now)] if is_first else []
        return [*start, *events.of_write(write.move, write.news, write.values, now=now)]
