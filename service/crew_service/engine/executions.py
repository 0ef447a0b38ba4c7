"""Callers' requests: start, poll, decide, stop. Each is one transaction, so only one of two conflicting ones wins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import InternalError

from crew_service import tracing
from crew_service.engine import asks, continuing, events, usage
from crew_service.engine.crew import TaskOutput
from crew_service.engine.decisions import AlreadyOver as AlreadyOver
from crew_service.engine.decisions import BadAnswer as BadAnswer
from crew_service.engine.decisions import Decision as Decision
from crew_service.engine.decisions import NotWaiting as NotWaiting
from crew_service.engine.decisions import Refused as Refused
from crew_service.engine.decisions import UnknownExecution as UnknownExecution
from crew_service.engine.decisions import UnknownTask as UnknownTask
from crew_service.engine.decisions import decided, kept, of_call, settled
from crew_service.engine.idempotency import IdempotencyKey
from crew_service.engine.origin import origin
from crew_service.engine.principals import Principal
from crew_service.engine.printed import MOST
from crew_service.storage import integrity, journal, printed, queries, questions, states, views, webhooks
from crew_service.storage.database import Database
from crew_service.storage.json_values import tidy
from crew_service.storage.states import State

log = logging.getLogger(__name__)

STOPPED = "Stopped on request"
# The columns that a stop or an answer needs, of an execution that the caller may change.
OF_USAGE = ("tokens", "usage", "model_usage", "earlier_usage")
OF_STOP = (*queries.HEAD, "counted_at", "work_seconds", "steps", "webhooks", *OF_USAGE)
OF_ANSWER = (*queries.HEAD, "updated_at", "trace", "webhooks", "gate")


@dataclass(frozen=True)
class Start:
    inputs: dict[str, Any]
    meta: dict[str, Any] | None = None
    webhooks: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)  # the execution's own, lower than the service's
    restore_from: str | None = None
    continue_from: str | None = None  # any id of a failed execution or of one that continues it


Respond = Callable[[str, Decision], dict[str, Any]]
Done = TypeVar("Done")


class Unreadable(Exception):
    """A request needs stored values that cannot be read; it has changed nothing."""


class Executions:
    """Executions of one crew, or of all crews.

    :param columns: columns that a poll reads
    :param wake: called when something is queued
    :param cancel: called when an execution has been stopped
    :param changed_task: given finished tasks with their digests, returns the first one that has since changed
    :param edit_problem: given a task, its stored data and an edited answer, returns why the crew cannot accept it
    """

    def __init__(
        self,
        database: Database,
        *,
        crew: str | None = None,
        columns: tuple[str, ...] = (),
        task_ids: frozenset[str] = frozenset(),
        queue_delay: float = 0.0,
        wake: Callable[[], None] = lambda: None,
        cancel: Callable[[str, str], None] = lambda execution_id, reason: None,
        changed_task: Callable[[list[tuple[str, str | None]]], str | None] = lambda finished: None,
        edit_problem: Callable[[str, dict[str, Any], str], str | None] = lambda task_id, state, text: None,
    ) -> None:
        self._database = database
        self._crew = crew
        self._status_query = queries.status_query(columns)
        small = queries.status_query if database.peeks_at_small else queries.small_status_query
        self._small_query = small(columns) if database.is_sqlite else queries.small_statuses_query(columns)
        self._completed_status_query = queries.completed_status_query(columns, is_sqlite=database.is_sqlite)
        self._task_ids = task_ids
        self._queue_delay = queue_delay
        self._wake = wake
        self._cancel = cancel
        self._changed_task = changed_task
        self._edit_problem = edit_problem

    def kickoff(self, caller: Principal, start: Start, once: IdempotencyKey | None) -> dict[str, Any]:
        now = self._database.now()
        with self._database.writing() as connection:
            once, earlier = self._repeated(connection, once)
            if earlier:
                return earlier
            if start.restore_from:
                self._check_state(connection, caller, start.restore_from)
            execution_id = str(uuid4())
            values: dict[str, Any] = {"owner": caller.user, "restore_from": start.restore_from}
            if start.continue_from:
                values = self._taken_over(connection, caller, start, into=execution_id)
            queries.create(
                connection,
                id=execution_id,
                kickoff_id=execution_id,
                crew=self._crew or "",
                created_at=now,
                updated_at=now,
                due_at=now + self._queue_delay,
                inputs=start.inputs,
                limits=start.limits or None,
                meta=start.meta,
                dag_id=found.dag_id if (found := origin(start.meta)) else None,
                trace=tracing.kicked_off(),
                webhooks=start.webhooks or None,
                usage=usage.counted(None),
                **values,
            )
            answer = {"kickoff_id": execution_id}
            if once:
                once.keep(connection, answer, execution_id=execution_id, now=now)
        continued = values.get("continued_from")
        said = f", continuing {continued}" if continued else ""
        log.info("kicked off by %s%s", caller.key, said, extra={"execution_id": execution_id})
        if continued:
            self._database.erased.set()
        self._wake()
        return answer

    def status_row(self, caller: Principal, kickoff_id: str) -> Row[Any] | None:
        """Return a status of any size; a completed execution's output is a `JsonText`."""
        row = self._read(kickoff_id)
        if row is not None and not integrity.is_readable(row):
            self.end_unreadable(row.id)
            row = self._read(kickoff_id)
        return row if self.sees(caller, row) else None

    def _read(self, kickoff_id: str) -> Row[Any] | None:
        """Read a status on a connection other than `peek`'s, so that a large status does not delay small ones."""
        with self._database.reading() as connection:
            row = connection.execute(self._completed_status_query, {"key": kickoff_id}).one_or_none()
            if row is not None and integrity.is_readable(row):
                return row
            return connection.execute(self._status_query, {"key": kickoff_id}).one_or_none()

    def small_status_rows(self, kickoff_ids: list[str]) -> dict[str, Row[Any]]:
        """Return the statuses, by id, that are small and readable; the caller checks who may see them."""
        rows: Iterable[Row[Any] | None] = ()
        if self._database.is_sqlite:
            rows = [self._database.peek(self._small_query, each) for each in kickoff_ids]
        elif kickoff_ids:
            # If a stored value is damaged, each status is read on its own, like a large one.
            with self._database.reading() as connection, suppress(InternalError):
                rows = connection.execute(self._small_query, {"keys": kickoff_ids}).all()
        return {row.kickoff_id: row for row in rows if row is not None and integrity.is_readable(row)}

    def is_known(self, caller: Principal, kickoff_id: str) -> bool:
        return self.sees(caller, self._database.peek(queries.KNOWN, kickoff_id))

    def head(self, caller: Principal, some_id: str) -> Row[Any] | None:
        """Find an execution that the caller may see, by its id or by any id under which it is or was polled."""
        with self._database.reading() as connection:
            row = views.head(connection, some_id)
        return row if self.sees(caller, row) else None

    def printed(self, execution_id: str) -> str:
        """Return the last MiB printed by an execution's crew."""
        with self._database.reading() as connection:
            return printed.last(connection, execution_id, most=MOST)[0]

    def find(self, caller: Principal, some_id: str) -> tuple[Row[Any], list[TaskOutput]] | None:
        """Find an execution by its polling id or its own id; return it with its finished tasks."""
        self._mend(some_id)
        with self._database.reading() as connection:
            row = queries.by_either_id(connection, some_id)
            if row is None or not self.sees(caller, row):
                return None
            return row, [task for task in queries.tasks_of(connection, row.id) if integrity.is_task(task)]

    def latest(
        self, caller: Principal, limit: int, states: Collection[State] = (), more: Collection[str] = ()
    ) -> list[Row[Any]]:
        """Return the newest executions that the caller may see, in these states (all if empty), with `more` columns."""

        def read() -> list[Row[Any]]:
            with self._database.reading() as connection:
                return queries.latest(
                    connection, crew=self._crew, owner=caller.user, limit=limit, states=states, more=more
                )

        rows = read()
        unreadable = [row.id for row in rows if not integrity.is_readable(row)]
        for execution_id in unreadable:
            self.end_unreadable(execution_id)
        return [row for row in read() if integrity.is_readable(row)] if unreadable else rows

    def resume(
        self,
        caller: Principal,
        decision: Decision,
        once: IdempotencyKey | None,
        answer: Respond,
        *,
        answered_by: str | None = None,
    ) -> dict[str, Any]:
        """Apply the decision; `answer` creates the response from the id to poll next and the settled decision."""
        by = answered_by or caller.key
        return self._ending_unreadable(lambda: self._resume(caller, decision, once, answer, by))

    def _resume(
        self, caller: Principal, decision: Decision, once: IdempotencyKey | None, answer: Respond, by: str
    ) -> dict[str, Any]:
        try:
            self._check_asked(caller, decision, self._head(decision.execution_id))
        except Refused:
            # Read after the execution: the response to an earlier request was stored together with its effect.
            if once and (earlier := self.said(once)):
                return earlier
            raise
        now = self._database.now()
        with self._database.writing() as connection:
            once, earlier = self._repeated(connection, once)
            if earlier:
                return earlier
            row = self._question(connection, caller, decision)
            said, decision = decision, settled(row.gate, decision)
            questions.close(connection, row.gate, by=by, now=now)
            questions.close_round(connection, row, {**kept(row.gate, said, decision), "by": by}, now=now)
            is_same = "ask" in row.gate or row.gate["key"] == row.gate["task_id"]
            kickoff_id = row.kickoff_id if is_same else str(uuid4())
            if decision.outcome == asks.FAIL and "ask" in row.gate:
                self._give_up(connection, row, now)
            else:
                queries.move(
                    connection,
                    row.id,
                    states.RESUME,
                    now=now,
                    kickoff_id=kickoff_id,
                    due_at=now + self._queue_delay,
                    webhooks=row.webhooks if decision.webhooks is None else decision.webhooks or None,
                    gate=_after(connection, row, decision),
                    trace=tracing.resumed(row.trace),
                    current_task=None,
                    current_agent=None,
                )
            webhooks.withdraw_question(connection, row.id)
            answered = answer(kickoff_id, decision)
            if once:
                once.keep(connection, answered, execution_id=row.id, now=now)
        if row.webhooks or "ask" in row.gate:
            self._database.erased.set()
        verdict = decision.outcome or ("approved" if decision.is_approve else "sent back")
        log.info("%s by %s", verdict, caller.key, extra={"execution_id": row.id})
        self._wake()
        return answered

    def _give_up(self, connection: Connection, row: Row[Any], now: float) -> None:
        """End the execution with the same error as if there were nobody to ask about the call's outcome."""
        error, failure = row.gate["failure"], continuing.failure_of(None, row.gate["before"])
        queries.move(connection, row.id, states.GIVE_UP, now=now, error=error, failure=failure, **queries.ended(now))
        self._tell_of_end(connection, row, error, now)

    def said(self, once: IdempotencyKey) -> dict[str, Any] | None:
        """Return the earlier response to this request, if any."""
        with self._database.reading() as connection:
            return self._repeated(connection, once)[1]

    def say_once(self, once: IdempotencyKey | None, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a request that changes nothing; the same key always gets the same response."""
        if once is None:
            return answer
        with self._database.writing() as connection:
            once, earlier = self._repeated(connection, once)
            if once and not earlier:
                once.keep(connection, answer, execution_id=None, now=self._database.now())
            return earlier or answer

    def stop(self, caller: Principal, kickoff_id: str) -> Row[Any]:
        """Stop an execution; return its row from before the stop."""
        return self._ending_unreadable(lambda: self._stop(caller, kickoff_id))

    def _stop(self, caller: Principal, kickoff_id: str) -> Row[Any]:
        head = self._head(kickoff_id)
        if head is None or not self.sees(caller, head):
            raise UnknownExecution("no such execution")
        if head.state in states.OVER:
            raise AlreadyOver(State(head.state))
        now = self._database.now()
        with self._database.writing() as connection:
            row = queries.locked(connection, kickoff_id, OF_STOP)
            if row is None or not self.sees(caller, row):
                raise UnknownExecution("no such execution")
            _check(row)
            running = row.state == State.RUNNING and row.counted_at is not None
            work = row.work_seconds + (max(0.0, now - row.counted_at) if running else 0.0)
            values = {"error": STOPPED, "work_seconds": work, **queries.ended(now)}
            stopped = queries.move(connection, row.id, states.STOP, now=now, **values)
            if not stopped:
                raise AlreadyOver(State(row.state))
            webhooks.withdraw_question(connection, row.id)
            self._tell_of_end(connection, row, STOPPED, now)
        if row.webhooks or row.steps:
            self._database.erased.set()
        log.info("stopped by %s", caller.key, extra={"execution_id": row.id})
        self._cancel(row.id, "stopped on request")
        return row

    def _repeated(
        self, connection: Connection, key: IdempotencyKey | None
    ) -> tuple[IdempotencyKey | None, dict[str, Any] | None]:
        """Return the key for this crew and the earlier response to the same request, if any."""
        if key is None:
            return None, None
        key = key.for_crew(self._crew or "")
        return key, key.earlier(connection)

    def _check_state(self, connection: Connection, caller: Principal, state_id: str) -> None:
        """Check access to a state, which belongs to its execution's owner or, if it has none, to the organization."""
        row = queries.by_either_id(connection, state_id, queries.HEAD)
        if not (self.sees(caller, row) if row is not None else caller.user is None):
            raise UnknownExecution("no such state")

    def _taken_over(self, connection: Connection, caller: Principal, start: Start, *, into: str) -> dict[str, Any]:
        assert start.continue_from
        row = continuing.find(
            connection, start.continue_from, start.inputs, sees=lambda found: self.sees(caller, found)
        )
        return continuing.take_over(connection, row, into=into, changed=self._changed_task)

    def sees(self, caller: Principal, row: Row[Any] | None) -> bool:
        return row is not None and self._crew in (None, row.crew) and caller.may_see(row.owner)

    def asked(self, caller: Principal, some_id: str) -> Row[Any] | None:
        """Find an execution that the caller may answer, by its polling id or its own id, with its question."""

        def read() -> Row[Any] | None:
            with self._database.reading() as connection:
                head = queries.by_either_id(connection, some_id, queries.HEAD)
                return queries.by_id(connection, head.id, OF_ANSWER) if head and self.sees(caller, head) else None

        row = read()
        if row is not None and not integrity.is_readable(row):
            self.end_unreadable(row.id)
            row = read()
        return row

    def _ending_unreadable(self, request: Callable[[], Done]) -> Done:
        """Make a request; if the execution cannot be read, end it and repeat the request."""
        try:
            return request()
        except Unreadable as found:
            self.end_unreadable(*found.args)
        return request()

    def _mend(self, some_id: str) -> None:
        """End an execution if its row cannot be read."""
        with self._database.reading() as connection:
            row = queries.by_either_id(connection, some_id)
        if row is not None and not integrity.is_readable(row):
            self.end_unreadable(row.id)

    def end_unreadable(self, execution_id: str) -> None:
        with self._database.writing() as connection:
            integrity.end_unreadable(connection, execution_id, now=self._database.now())
        log.error("the stored execution cannot be read, so it was ended", extra={"execution_id": execution_id})

    def _tell_of_end(self, connection: Connection, row: Row[Any], error: str, now: float) -> None:
        hook = (row.webhooks or {}).get("events")
        if hook and (not hook.get("events") or "crew_kickoff_failed" in hook["events"]):
            body = events.body(row.id, [events.failed(error, now=now)])
            webhooks.post(connection, row.id, "events", hook, body, now=now)

    def check_edit(self, caller: Principal, decision: Decision) -> None:
        """Check an edited answer with the crew before it is applied, because the crew's code may take a while.

        If the draft changes in between, the edit is refused, because an edit identifies its draft.
        """
        row = self.asked(caller, decision.execution_id)
        if row is None or row.id != decision.execution_id or row.state != State.WAITING:
            return  # refused when it is applied
        try:
            edit = settled(row.gate, decision).edit
        except Refused:
            return
        if edit is None or row.gate["key"] != decision.task_id:
            return
        if problem := self._edit_problem(row.gate["task_id"], row.gate["state"], edit.text):
            raise BadAnswer(f"edited_output is not accepted because {problem.rstrip('.')}; nothing was changed.")

    def _head(self, some_id: str) -> Row[Any] | None:
        """Read an execution's head before waiting for the turn to write: SQLite scans a large row for it."""
        with self._database.reading() as connection:
            return queries.by_either_id(connection, some_id, queries.HEAD)

    def _check_asked(self, caller: Principal, decision: Decision, head: Row[Any] | None) -> Row[Any]:
        """Refuse a decision that the execution's state or owner rules out; return its head."""
        if head is None or head.id != decision.execution_id or not self.sees(caller, head):
            raise UnknownExecution("no such execution")
        _check(head)
        if decision.task_id not in head.asked and decision.task_id not in self._task_ids:
            raise UnknownTask("no such task in this execution")
        if head.state != State.WAITING:
            raise NotWaiting("the task is not waiting for feedback")
        return head

    def _question(self, connection: Connection, caller: Principal, decision: Decision) -> Row[Any]:
        head = self._check_asked(caller, decision, queries.locked(connection, decision.execution_id))
        row = queries.by_id(connection, head.id, OF_ANSWER)
        assert row is not None
        _check(row)
        if row.gate["key"] != decision.task_id:
            raise NotWaiting("the task is not waiting for feedback")
        if decision.round not in (None, len(row.gate["rounds"]) + 1):
            raise NotWaiting("a different answer is now waiting for feedback")
        if decision.question_id not in (None, row.gate.get("question_id")):
            raise NotWaiting("the Flow is now asking a different question")
        return row


def _check(row: Row[Any]) -> None:
    if not integrity.is_readable(row):
        raise Unreadable(row.id)


def _after(connection: Connection, row: Row[Any], decision: Decision) -> Any:
    """Return the gate for the next segment; a decision on a call is stored in the call's journal entry."""
    if "ask" not in row.gate:
        return decided(row.gate, decision)
    journal.decide(connection, row.id, row.gate["entry"], tidy(of_call(decision)))
    return row.gate["before"]
