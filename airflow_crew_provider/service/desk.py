"""What a caller can ask for: start, look, decide, stop. One transaction each, so that of two rivals one wins."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Row

from . import ledger, states
from .callers import Caller
from .crews import TaskOutput
from .once import Once
from .states import State
from .store import Store

log = logging.getLogger(__name__)


class Refused(Exception):
    """Nothing was changed; the text says why."""


class UnknownExecution(Refused):
    pass


class UnknownTask(Refused):
    pass


class NotWaiting(Refused):
    pass


class AlreadyOver(Refused):
    def __init__(self, state: State) -> None:
        super().__init__(f"the execution is over: {state}")
        self.state = state


@dataclass(frozen=True)
class Start:
    inputs: dict[str, Any]
    meta: dict[str, Any] | None = None
    webhooks: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    execution_id: str
    task_id: str
    is_approve: bool
    feedback: str
    webhooks: dict[str, Any] | None = None  # None: the same again
    round: int | None = None  # which answer was shown, counted from 1; None: the latest


Answer = Callable[[str], dict[str, Any]]


class Desk:
    """`columns`: what a look reads. `wake`: something is queued. `cancel`: it is over. A terminal needs none."""

    def __init__(
        self,
        store: Store,
        *,
        columns: tuple[str, ...] = (),
        task_ids: frozenset[str] = frozenset(),
        queue_delay: float = 0.0,
        wake: Callable[[], None] = lambda: None,
        cancel: Callable[[str, str], None] = lambda execution_id, reason: None,
    ) -> None:
        self._store = store
        self._look = ledger.looking_at(columns)
        self._task_ids = task_ids
        self._queue_delay = queue_delay
        self._wake = wake
        self._cancel = cancel

    def kickoff(self, caller: Caller, start: Start, once: Once | None) -> dict[str, Any]:
        now = time.time()
        with self._store.writing() as connection:
            earlier = once and once.earlier(connection)
            if earlier:
                return earlier
            execution_id = str(uuid4())
            ledger.create(
                connection,
                id=execution_id,
                kickoff_id=execution_id,
                owner=caller.user,
                created_at=now,
                updated_at=now,
                due_at=now + self._queue_delay,
                inputs=start.inputs,
                meta=start.meta,
                webhooks=start.webhooks or None,
            )
            answer = {"kickoff_id": execution_id}
            if once:
                once.keep(connection, answer, execution_id=execution_id, now=now)
        log.info("kicked off by %s", caller.key, extra={"execution_id": execution_id})
        self._wake()
        return answer

    def look(self, caller: Caller, kickoff_id: str) -> Row[Any] | None:
        row = self._store.peek(self._look, kickoff_id)
        return row if row is not None and caller.may_see(row.owner) else None

    def find(self, caller: Caller, some_id: str) -> tuple[Row[Any], list[TaskOutput]] | None:
        """By the polled id or by that of the kickoff; with the finished tasks."""
        with self._store.reading() as connection:
            row = ledger.by_kickoff_id(connection, some_id) or ledger.by_id(connection, some_id)
            if row is None or not caller.may_see(row.owner):
                return None
            return row, ledger.tasks_of(connection, row.id)

    def latest(self, caller: Caller, limit: int, state: State | None = None) -> list[Row[Any]]:
        with self._store.reading() as connection:
            return ledger.latest(connection, owner=caller.user, limit=limit, state=state)

    def resume(self, caller: Caller, decision: Decision, once: Once | None, answer: Answer) -> dict[str, Any]:
        """Apply the decision; `answer` makes the response from the id that is polled from now on."""
        now = time.time()
        with self._store.writing() as connection:
            earlier = once and once.earlier(connection)
            if earlier:
                return earlier
            row = self._question(connection, caller, decision)
            kickoff_id = row.kickoff_id if row.gate["key"] == row.gate["task_id"] else str(uuid4())
            ledger.move(
                connection,
                row.id,
                states.RESUME,
                now=now,
                kickoff_id=kickoff_id,
                due_at=now + self._queue_delay,
                webhooks=row.webhooks if decision.webhooks is None else decision.webhooks or None,
                gate=_decided(row.gate, decision),
                current_task=None,
                current_agent=None,
            )
            ledger.withdraw_question(connection, row.id)
            said = answer(kickoff_id)
            if once:
                once.keep(connection, said, execution_id=row.id, now=now)
        if row.webhooks:
            self._store.erased.set()
        verdict = "approved" if decision.is_approve else "sent back"
        log.info("%s by %s", verdict, caller.key, extra={"execution_id": row.id})
        self._wake()
        return said

    def say_once(self, once: Once | None, answer: dict[str, Any]) -> dict[str, Any]:
        """Give an answer that changes nothing, the same again for the same key."""
        if once is None:
            return answer
        with self._store.writing() as connection:
            earlier = once.earlier(connection)
            if not earlier:
                once.keep(connection, answer, execution_id=None, now=time.time())
            return earlier or answer

    def stop(self, caller: Caller, kickoff_id: str) -> None:
        now = time.time()
        with self._store.writing() as connection:
            row = ledger.by_kickoff_id(connection, kickoff_id) or ledger.by_id(connection, kickoff_id)
            if row is None or not caller.may_see(row.owner):
                raise UnknownExecution("no such execution")
            work = row.work_seconds + (now - row.counted_at if row.state == State.RUNNING else 0.0)
            values = {"error": "Stopped on request", "work_seconds": work, **ledger.ended(now)}
            stopped = ledger.move(connection, row.id, states.STOP, now=now, **values)
            if not stopped:
                raise AlreadyOver(State(row.state))
            ledger.withdraw_question(connection, row.id)
        if row.webhooks:
            self._store.erased.set()
        log.info("stopped by %s", caller.key, extra={"execution_id": row.id})
        self._cancel(row.id, "stopped on request")

    def _question(self, connection: Connection, caller: Caller, decision: Decision) -> Row[Any]:
        row = ledger.by_id(connection, decision.execution_id)
        if row is None or not caller.may_see(row.owner):
            raise UnknownExecution("no such execution")
        if decision.task_id not in row.asked and decision.task_id not in self._task_ids:
            raise UnknownTask("no such task in this execution")
        if row.state != State.WAITING or row.gate["key"] != decision.task_id:
            raise NotWaiting("the task does not wait for feedback")
        if decision.round not in (None, len(row.gate["rounds"]) + 1):
            raise NotWaiting("another answer waits for feedback by now")
        return row


def _decided(gate: dict[str, Any], decision: Decision) -> dict[str, Any]:
    said = {"output": gate["output"], "feedback": decision.feedback}
    return {**gate, "rounds": [*gate["rounds"], said], "is_approve": decision.is_approve}
