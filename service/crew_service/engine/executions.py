"""Callers' requests: start, poll, decide, stop. Each is one transaction, so only one of two conflicting ones wins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import InternalError

from crew_service import tracing
from crew_service.budgets import Owner
from crew_service.engine import continuing, events, usage
from crew_service.engine.budgets import Budgets, OverBudget
from crew_service.engine.crew import InputFile, TaskOutput, TokensUsed
from crew_service.engine.decisions import (
    AlreadyOver,
    BadAnswer,
    Decision,
    NotWaiting,
    Refused,
    UnknownExecution,
    UnknownTask,
)
from crew_service.engine.files import UnknownFile, hashes, stored
from crew_service.engine.idempotency import IdempotencyKey
from crew_service.engine.ledger import Ledger
from crew_service.engine.limits import Limits
from crew_service.engine.origin import origin
from crew_service.engine.principals import Principal
from crew_service.engine.printed import MOST
from crew_service.engine.questions import CallQuestion, Question, question_in
from crew_service.storage import files, integrity, journal, owners, printed, queries, questions, states, views, webhooks
from crew_service.storage.database import Database
from crew_service.storage.states import State

log = logging.getLogger(__name__)

STOPPED = "Stopped on request"
UNLIMITED = Limits(float("inf"))
# The columns that a stop or an answer needs, of an execution that the caller may change.
OF_USAGE = ("tokens", "usage", "model_usage", "earlier_usage")
OF_STOP = (*queries.HEAD, "counted_at", "work_seconds", "steps", "webhooks", *OF_USAGE)
OF_ANSWER = (*queries.HEAD, "updated_at", "trace", "webhooks", "gate", "answer_by", "crew_token", "limits", *OF_USAGE)
DEADLINE = "deadline"  # who answered a question that nobody answered in time


@dataclass(frozen=True)
class Start:
    inputs: dict[str, Any]
    meta: dict[str, Any] | None = None
    webhooks: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)  # the execution's own, lower than the service's
    restore_from: str | None = None
    continue_from: str | None = None  # any id of a failed execution or of one that continues it
    files: list[InputFile] = field(default_factory=list)
    files_of: str = ""  # the owner of these uploads


Respond = Callable[[str, Decision], dict[str, Any]]
Done = TypeVar("Done")


class Unreadable(Exception):
    """A request needs stored values that cannot be read; it has changed nothing."""


class Executions:
    """Executions of one crew, or of all crews.

    :param columns: columns that a poll reads
    :param wake: called when something is queued
    :param cancel: called when an execution has been stopped
    :param unusable: given finished tasks and the crew's data, returns why the crew cannot go on after them
    :param edit_problem: given a task, its stored data, an edited answer and the execution's owner, returns why the
        crew cannot accept it, and reports what its models use
    :param spent: given what these have used
    """

    def __init__(
        self,
        database: Database,
        *,
        crew: str | None = None,
        columns: tuple[str, ...] = (),
        task_ids: frozenset[str] = frozenset(),
        queue_delay: float = 0.0,
        budgets: Budgets | None = None,
        wake: Callable[[], None] = lambda: None,
        cancel: Callable[[str, str], None] = lambda execution_id, reason: None,
        unusable: continuing.Unusable = lambda finished, state: None,
        edit_problem: Callable[..., str | None] = lambda task_id, state, text, *, owner, report: None,
        limits: Limits = UNLIMITED,
        ledger: Ledger | None = None,
        spent: Callable[[usage.ByModel], None] = lambda models: None,
    ) -> None:
        self._database = database
        self._crew = crew
        self._status_query = queries.status_query(columns)
        small = queries.status_query if database.peeks_at_small else queries.small_status_query
        self._small_query = small(columns) if database.is_sqlite else queries.small_statuses_query(columns)
        self._completed_status_query = queries.completed_status_query(columns, is_sqlite=database.is_sqlite)
        self._task_ids = task_ids
        self._queue_delay = queue_delay
        self._budgets = budgets or Budgets()
        self._wake = wake
        self._cancel = cancel
        self._unusable = unusable
        self._edit_problem = edit_problem
        self._limits = limits
        self._ledger = ledger
        self._spent = spent

    def kickoff(self, caller: Principal, start: Start, once: IdempotencyKey | None) -> dict[str, Any]:
        now = self._database.now()
        with self._database.writing() as connection:
            once, earlier = self._repeated(connection, once)
            if earlier:
                return earlier
            if start.restore_from:
                self._check_state(connection, caller, start.restore_from)
            execution_id = str(uuid4())
            owner: Owner = caller
            values: dict[str, Any] = {"restore_from": start.restore_from}
            if start.continue_from:
                owner, values = self._taken_over(connection, caller, start, into=execution_id)
            self._budgets.check(connection, self._crew or "", owner, now=now)
            if start.files:
                ids = {each.id for each in start.files}
                taken = files.take(connection, start.files_of, ids, into=execution_id)
                if unknown := next((each.name for each in start.files if each.id not in taken), None):
                    raise UnknownFile(unknown)
            queries.create(
                connection,
                id=execution_id,
                kickoff_id=execution_id,
                crew=self._crew or "",
                created_at=now,
                updated_at=now,
                due_at=now + self._queue_delay,
                inputs=start.inputs,
                files=stored(start.files),
                limits=start.limits or None,
                meta=start.meta,
                dag_id=run.dag_id if (run := origin(start.meta)) else None,
                trace=tracing.kicked_off(),
                webhooks=start.webhooks or None,
                usage=usage.counted(None),
                **owners.columns(owner),
                **values,
            )
            answer = {"kickoff_id": execution_id}
            if once:
                once.keep(connection, answer, execution_id=execution_id, now=now)
        continued = values.get("continued_from")
        continuation = f", continuing {continued}" if continued else ""
        log.info("kicked off by %s%s", caller.key, continuation, extra={"execution_id": execution_id})
        if continued:
            self._database.erased.set()
        self._wake()
        return answer

    def status_row(self, caller: Principal, kickoff_id: str) -> Row[Any] | None:
        """Return a status of any size; a completed execution's output is a `JsonText`."""
        row = self._readable(lambda: self._read(kickoff_id))
        return row if self.sees(caller, row) else None

    def _readable(self, read: Callable[[], Row[Any] | None]) -> Row[Any] | None:
        """Read a row; if it cannot be read, end its execution and read it again."""
        row = read()
        if row is None or integrity.is_readable(row):
            return row
        self.end_unreadable(row.id)
        return read()

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

        def read() -> Row[Any] | None:
            with self._database.reading() as connection:
                return queries.by_either_id(connection, some_id)

        row = self._readable(read)
        if row is None or not self.sees(caller, row):
            return None
        with self._database.reading() as connection:
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
            row, question = self._question(connection, caller, decision)
            original, decision = decision, question.settled(decision)
            questions.close(connection, question.question_id, by=by, now=now)
            answered = {**question.kept(original, decision), "by": by}
            questions.close_round(connection, row, question.round_values, answered, now=now)
            kickoff_id = row.kickoff_id if question.keeps_kickoff_id else str(uuid4())
            if isinstance(question, CallQuestion) and question.is_given_up(decision):
                self._give_up(connection, row, question, now)
            else:
                if isinstance(question, CallQuestion) and not journal.decide(
                    connection, row.id, question.entry, question.in_journal(decision)
                ):
                    raise Unreadable(row.id)
                queries.move(
                    connection,
                    row.id,
                    states.RESUME,
                    now=now,
                    kickoff_id=kickoff_id,
                    due_at=now + self._queue_delay,
                    webhooks=row.webhooks if decision.webhooks is None else decision.webhooks or None,
                    gate=question.after(decision),
                    trace=tracing.resumed(row.trace),
                    current_task=None,
                    current_agent=None,
                    answer_by=None,
                )
            webhooks.withdraw_question(connection, row.id)
            said_once = answer(kickoff_id, decision)
            if once:
                once.keep(connection, said_once, execution_id=row.id, now=now)
        if row.webhooks or question.is_ask:
            self._database.erased.set()
        verdict = decision.outcome or ("approved" if decision.is_approve else "sent back")
        log.info("%s by %s", verdict, DEADLINE if decision.is_expiry else caller.key, extra={"execution_id": row.id})
        self._wake()
        return said_once

    def expire(self, row: Row[Any]) -> None:
        """Answer a question whose deadline has passed, with nobody's answer; if unreadable, end its execution."""
        try:
            decision = Decision(row.id, row.asked[-1], None, "", is_expiry=True)
            with suppress(Refused):  # somebody was faster
                self.resume(Principal(), decision, None, lambda *_: {}, answered_by=DEADLINE)
        except integrity.MALFORMED:
            log.exception("a question cannot be read", extra={"execution_id": row.id})
            self.end_unreadable(row.id)

    def _give_up(self, connection: Connection, row: Row[Any], question: CallQuestion, now: float) -> None:
        """End the execution with the same error as if there were nobody to ask about the call's outcome."""
        error = question.failure or ""
        failure = continuing.failure_of(None, None if question.before is None else question_in(question.before))
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
            values = {"error": STOPPED, "work_seconds": work, "held_until": None, **queries.ended(now)}
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

    def _taken_over(
        self, connection: Connection, caller: Principal, start: Start, *, into: str
    ) -> tuple[Owner, dict[str, Any]]:
        assert start.continue_from
        row = continuing.find(
            connection,
            start.continue_from,
            start.inputs,
            hashes(start.files),
            sees=lambda earlier: self.sees(caller, earlier),
        )
        return owners.owner_of(row), continuing.take_over(connection, row, into=into, unusable=self._unusable)

    def sees(self, caller: Principal, row: Row[Any] | None) -> bool:
        return row is not None and self._crew in (None, row.crew) and caller.may_see(row.owner)

    def asked(self, caller: Principal, some_id: str) -> Row[Any] | None:
        """Find an execution that the caller may answer, by its polling id or its own id, with its question."""

        def read() -> Row[Any] | None:
            with self._database.reading() as connection:
                head = queries.by_either_id(connection, some_id, queries.HEAD)
                return queries.by_id(connection, head.id, OF_ANSWER) if head and self.sees(caller, head) else None

        return self._readable(read)

    def _ending_unreadable(self, request: Callable[[], Done]) -> Done:
        """Make a request; if the execution cannot be read, end it and repeat the request."""
        try:
            return request()
        except Unreadable as error:
            self.end_unreadable(*error.args)
        return request()

    def end_unreadable(self, execution_id: str) -> None:
        with self._database.writing() as connection:
            integrity.end_unreadable(connection, execution_id, now=self._database.now())
        log.error("the stored execution cannot be read, so it was ended", extra={"execution_id": execution_id})

    def _tell_of_end(self, connection: Connection, row: Row[Any], error: str, now: float) -> None:
        if hook := (row.webhooks or {}).get("events"):
            due, _ = events.Stream(hook).parted([events.failed(error, now=now)], is_pause=True)
            if due:
                webhooks.post(connection, row.id, "events", hook, events.body(row.id, due), now=now)

    def check_edit(self, caller: Principal, decision: Decision) -> None:
        """Check an edited answer with the crew before it is applied, because the crew's code may take a while.

        If the draft changes in between, the edit is refused, because an edit identifies its draft.
        """
        row = self.asked(caller, decision.execution_id)
        if row is None or row.id != decision.execution_id or row.state != State.WAITING:
            return  # refused when it is applied
        question = question_in(row.gate)
        try:
            edit = question.settled(decision).edit
        except Refused:
            return
        if edit is None or question.key != decision.task_id:
            return
        if not isinstance(question, CallQuestion):  # no model checks arguments
            self._check_spending(row)
        reports: list[TokensUsed] = []
        check = partial(self._edit_problem, owner=row.owner, report=reports.append)
        try:
            problem = check(question.task_id, question.state, edit.text)
        finally:
            if reports and self._ledger:
                used, models = usage.of_reports(reports)
                self._ledger.add(row.id, used, models)
                self._spent(models)
        if problem:
            raise BadAnswer(f"edited_output is not accepted because {problem.rstrip('.')}; nothing was changed.")

    def _check_spending(self, row: Row[Any]) -> None:
        """:raises Refused: the execution may use no more tokens, so no guardrail may call a model"""
        tokens, limits = usage.counted(usage.handed_on(row)["usage"])["total_tokens"], self._limits.lowered(row.limits)
        if limits.has_too_many(tokens):
            raise BadAnswer(
                f"edited_output cannot be checked because the execution used {tokens} tokens; its limit is "
                f"{limits.max_tokens}; nothing was changed."
            )
        if self._budgets:
            with self._database.writing() as connection:
                try:
                    self._budgets.check(connection, row.crew, owners.owner_of(row), now=self._database.now())
                except OverBudget as over:
                    over.fate = "The edit was not checked, and nothing was changed."
                    raise

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

    def _question(self, connection: Connection, caller: Principal, decision: Decision) -> tuple[Row[Any], Question]:
        head = self._check_asked(caller, decision, queries.locked(connection, decision.execution_id))
        row = queries.by_id(connection, head.id, OF_ANSWER)
        assert row is not None
        _check(row)
        question = question_in(row.gate)
        if question.key != decision.task_id:
            raise NotWaiting("the task is not waiting for feedback")
        if decision.round not in (None, question.round):
            raise NotWaiting("a different answer is now waiting for feedback")
        if decision.question_id not in (None, question.question_id):
            raise NotWaiting("the Flow is now asking a different question")
        if row.answer_by is not None and row.answer_by <= self._database.now() and not decision.is_expiry:
            raise NotWaiting("the deadline of the question has passed")
        return row, question


def _check(row: Row[Any]) -> None:
    if not integrity.is_readable(row):
        raise Unreadable(row.id)
