"""Runs one segment of an execution, from its claim to its end: calls the crew, and stores what it reports and returns.

`run_state` follows what the crew has done, `segment_writes` stores it; this module decides what is stored, and how the
segment ends: the execution completes, waits for a person, fails, or returns to the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import SQLAlchemyError

from crew_service import tracing
from crew_service.engine import asks, files, machine, output_files, retrying, steps, tool_rules, usage
from crew_service.engine.continuing import OVER_TOKENS, failure_of
from crew_service.engine.crew import (
    Cancellation,
    Cancelled,
    Completed,
    Crew,
    CrewFailed,
    CrewKilled,
    FilePiece,
    InputFile,
    Job,
    JournalEntry,
    Outcome,
    PendingQuestion,
    PendingReview,
    Progress,
    Step,
    StepDone,
    StepsReplayed,
    TaskDone,
    TaskStarted,
    TokensUsed,
)
from crew_service.engine.ledger import Ledger
from crew_service.engine.limits import Limits
from crew_service.engine.printed_writer import PrintedWriter
from crew_service.engine.questions import OF_CALLS, Question, drafted
from crew_service.engine.run_state import RunState
from crew_service.engine.segment_writes import News, Result, Store, Write, Writes, together
from crew_service.storage import flow_states, journal, schema, states
from crew_service.storage import steps as stored_steps
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database
from crew_service.storage.json_values import tidy
from crew_service.storage.owners import owner_of

log = logging.getLogger(__name__)

MOST_KILLS = 3  # times that a killed crew process is restarted without a new step in between
MOST_LOSSES = 10  # of service processes running an execution; higher, because another execution may be to blame
LOST = (
    f"{MOST_LOSSES} crew service processes ended or stopped responding while running this execution, which made no "
    "progress in between, so it will not be restarted. Check their logs and memory."
)
Read = TypeVar("Read")


class Segment:
    def __init__(
        self,
        database: Database,
        row: Row[Any],
        done: list[Any],
        *,
        limits: Limits,
        fresh_ids: bool,
        posted: Callable[[], None],
        spent: Callable[[usage.ByModel], None],
        printed: PrintedWriter,
        stored_files: files.Files,
        ledger: Ledger,
    ) -> None:
        self.execution_id: str = row.id
        self.owner = owner_of(row)
        self._database = database
        self._row = row
        self._limits = limits.lowered(row.limits)
        self._fresh_ids = fresh_ids
        self._spent = spent
        self._printed = printed
        self._trouble: Exception | None = None  # the last exception raised by a report
        self._state = RunState(row, done)
        self.job = _job(database, row, done, self._state.answered, printed, stored_files)
        self._output_files = output_files.OutputFiles(stored_files, row.id)
        self._writes = Writes(database, row, self.job.cancelled, posted, ledger)

    def run(self, crew: Crew) -> None:
        """Run the crew and record how the segment ended; let `Cancelled`, machine and database errors propagate."""
        if self._row.losses >= MOST_LOSSES:
            self.fail(LOST)
            return
        self._state.digests = {task.id: task.digest for task in crew.tasks}
        self._output_files.gated = {task.id for task in crew.tasks if task.human_input}
        with tracing.segment(self._row) as span:
            try:
                outcome = self._outcome(crew)
            except (Cancelled, SQLAlchemyError):  # the latter: the database refused a value
                raise
            except CrewKilled as killed:
                span.error = type(killed).__name__
                self._go_on_after(killed)
            except BaseException as failure:  # even a crew's SystemExit must not stop the service
                if machine.is_trouble(failure) and (crew.isolation == "process" or failure is self._trouble):
                    raise  # not the crew's error: a crew's process reports its own, and an inline crew raises its own
                span.error = type(failure).__name__
                if isinstance(failure, CrewFailed):
                    self.fail(str(failure), failure)
                else:
                    self.fail(f"{span.error}: {failure}")
            else:
                self._end(outcome)

    def _outcome(self, crew: Crew) -> Outcome:
        """Run the crew; store its printed output before its outcome."""
        try:
            self._enforce_limits_now()  # the executions that it continues may have used more than its limit
            self.job.cancelled.raise_if_set()
            self._check_once()
            return crew.run(self.job, self.report)
        finally:
            self._printed.write(self.job.printed)

    def _check_once(self) -> None:
        """Fail if a task that called a run-once tool is gone: under another id, it would call the tool again."""
        if not self._state.steps:
            return
        for call in _recorded(self._database, self.execution_id, self.job.cancelled, only_once=True):
            if call.task_id and self._state.is_gone(call) and asks.may_have_run(call):
                raise CrewFailed(tool_rules.task_gone(call.name, call.task_id))

    # --- what the crew reports ---

    def report(self, progress: Progress) -> None:
        self.job.cancelled.raise_if_set()
        try:
            write = self._reported(progress)
            if write is not None and not self._writes.put(write):
                raise Cancelled("the execution is no longer running here")
        except Exception as error:
            self._trouble = error
            raise
        if write is not None and write.result is not None:
            self._state.done.append(write.result.task)
            self._state.kills = 0
            if self._state.steps:
                self._database.erased.set()

    def _reported(self, progress: Progress) -> Write | None:
        """Return what to store of a report; None for a file of which more follows."""
        match progress:
            case TokensUsed():
                self._spent(self._state.count(progress))
                self._enforce_limits_now()
                self.job.cancelled.raise_if_set()
                return Write(values=self._state.cost, is_calm=True)
            case TaskStarted():
                return self._begun(progress)
            case StepDone():
                return self._agent_step(progress)
            case TaskDone(task, flow_state, step, following):
                finished = [self._finished(tidy(task), flow_state)]
                before = [self._agent_step(step)] if step else []
                after = [self._begun(following)] if following else []
                return together([*before, *finished, *after])
            case Step():
                return self._step(progress)
            case FilePiece():
                return self._file(progress)
            case StepsReplayed(numbers):
                log.info("steps taken from the journal: %d", len(numbers), extra={"execution_id": self.execution_id})
                return Write(store=self._mark_replayed(numbers), is_calm=True)

    def _begun(self, started: TaskStarted) -> Write:
        self._state.begin(started.task_id, started.agent, now=self._database.now())
        task = tidy({"current_task": started.task_id, "current_agent": started.agent})
        about = {"task": task["current_task"], "agent": task["current_agent"]}
        return Write(values={**task, **tidy(self._state.open_tasks)}, news=[("task_started", about)])

    def _agent_step(self, done: StepDone) -> Write:
        step = steps.told_at_once(done, self.job.printed)
        return Write(values={"last_step": step}, news=[("step", step)], is_calm=True)

    def _finished(self, task: Any, flow_state: str | None) -> Write:
        state = self._state
        visible = {name: value for name, value in task.items() if name != "point"}
        body = {name: value for name, value in visible.items() if name not in ("task_id", "execution_time")}
        result = Result(len(state.done), task, state.end(task), state.digests.get(task["task_id"]))
        values: dict[str, Any] = {
            "completed_tasks": len(state.done) + 1,
            "last_task": visible,
            "kills": 0,
            **state.cost,
        }
        values |= {"work_seconds": self._writes.work_seconds, "counted_at": self._database.now()}
        settle = partial(output_files.settle, execution_id=self.execution_id, task_id=task["task_id"])
        store = _with_files(self._put_state(flow_state), settle)
        return Write(values=values, news=[("task", body)], result=result, store=store)

    def _file(self, piece: FilePiece) -> Write | None:
        problem = self._patiently(lambda: self._output_files.receive(piece))
        if problem:
            line = f"The file {output_files.shown(piece.name)} is not stored: {problem}."
            log.warning("%s", line, extra={"execution_id": self.execution_id})
            self.job.printed.add(f"{line}\n".encode())
        completed = self._patiently(lambda: self._output_files.completed(piece)) if piece.is_last else None
        return None if completed is None else Write(store=completed, is_calm=True)

    def _patiently(self, work: Callable[[], Read]) -> Read:
        return retrying.until_available(work, self.job.cancelled)[0]

    def _step(self, step: Step) -> Write:
        state = self._state
        is_known = state.take(step)
        stored = steps.stored(step, self.job.printed)

        def store(connection: Connection, now: float) -> None:
            if step.is_kept:
                _record(connection, self.execution_id, step, self._kept(step), now=now)
            if step.state == steps.RUNNING:
                begun = {**stored, "segment": self._row.segment, "began_at": now}
                stored_steps.begin(connection, self.execution_id, begun, again=is_known)
            else:
                stored_steps.end(connection, self.execution_id, stored)

        return Write(values={"steps": state.steps, "kills": state.kills}, store=store, is_calm=True)

    def _kept(self, entry: JournalEntry) -> dict[str, Any]:
        """Return a call in its stored form."""
        values = {each.name: getattr(entry, each.name) for each in fields(JournalEntry)}
        texts = tidy({"task_id": entry.task_id, "name": entry.name, "decision": entry.decision})
        return {**values, **texts, "digest": self._state.digests.get(entry.task_id)}

    def _mark_replayed(self, numbers: list[int]) -> Store:
        return lambda connection, now: stored_steps.mark_replayed(connection, self.execution_id, numbers)

    def _put_state(self, flow_state: str | None) -> Store | None:
        if flow_state is None:
            return None
        self._state.has_flow_state = True
        return lambda connection, now: flow_states.put(connection, self.execution_id, flow_state)

    # --- how the segment ends ---

    def _end(self, outcome: Outcome) -> None:
        match outcome:
            case Completed():
                self._complete(outcome)
            case PendingReview():
                question = drafted(outcome, self._state.answered, fresh_ids=self._fresh_ids)
                task = {"current_task": outcome.task_id, "current_agent": outcome.agent}
                self._wait(question, store=self._put_state(outcome.flow_state), values=task)
            case PendingQuestion():
                self._ask(outcome)

    def _complete(self, completed: Completed) -> None:
        output, output_json = tidy([completed.output, completed.output_json])
        body = {"result": output, "result_json": output_json, "token_usage": self._state.used}
        finished = partial(output_files.finished, execution_id=self.execution_id)
        if written := _read(self._database, self.job.cancelled, finished):
            body["files"] = written
        values = {"output": output, "output_json": output_json, "current_task": None}
        self._move(Write(states.COMPLETE, {"tasks": self._state.finished_tasks, **values}, [("crew", body)]))

    def _ask(self, pending: PendingQuestion) -> None:
        """Wait for a person's decision on a call; fail if nobody can be asked or an earlier release is also running."""
        kind = OF_CALLS[pending.kind]
        with_it = schema.WITH_ASKS if pending.of_flow is None else schema.WITH_FLOW_ASKS
        keeps_out = partial(self._database.keeps_out_earlier, with_it)
        if self._fresh_ids or not self._writes.patiently(keeps_out):
            self.fail(kind.unasked(pending, self.job.printed))
            return
        state = self._state
        number = len(state.asked) + 1
        now = self._database.now()
        question = kind.opened(pending, number=number, printed=self.job.printed, before=self._row.gate, now=now)
        state.steps = max(state.steps, pending.entry.number)

        def store(connection: Connection, now: float) -> None:
            journal.put(connection, self.execution_id, self._kept(pending.entry), now=now)

        values = {"steps": state.steps, "kills": 0, "answer_by": question.answer_by}
        self._wait(question, store=store, values=values)

    def _wait(self, question: Question, *, store: Store | None, values: dict[str, Any]) -> None:
        keys = [*self._state.asked, question.key]
        show = partial(output_files.show, execution_id=self.execution_id, task_id=question.task_id, number=len(keys))
        news: News = ("human_input", question.announcement(self.execution_id))
        write = Write(states.WAIT, {**values, "asked": keys}, [news], question=question)
        self._move(replace(write, store=_with_files(store, show)))

    def fail(self, error: str, failed: CrewFailed | None = None) -> None:
        """End the execution with an error; secrets in an exception's text are masked here."""
        failure = tidy(failure_of(failed, self._state.answered))
        self._move(Write(states.FAIL, {"error": self.job.printed.masked(tidy(error)), "failure": failure}))

    def _go_on_after(self, killed: CrewKilled) -> None:
        """Rerun the task with its journal, but only a limited number of times."""
        if self._state.kills >= MOST_KILLS:
            self.fail(f"{killed} It was restarted {MOST_KILLS} times without making progress.")
            return
        log.warning("%s Restarting it.", killed, extra={"execution_id": self.execution_id})
        self._move(Write(states.REQUEUE, {"kills": self._state.kills + 1}))

    def requeue(self) -> None:
        """Return the execution to its place in the queue, to continue from its last finished task."""
        with self._writes.turn:
            self._move(Write(states.REQUEUE), self._writes.put_now)

    def enforce_limits(self, over_budget: str | None = None) -> None:
        """Fail and cancel the execution if it exceeds a limit, but not during a write, which does not count as work.

        :param over_budget: why it may not use more, if budgets stop what is running
        """
        if not self._writes.turn.acquire(blocking=False):
            return
        try:
            state = self._state
            error = self._limits.exceeded(self._writes.work_seconds, state.tokens, state.tokens_of_chain - state.tokens)
            if error is None and over_budget:
                error = f"BudgetExceeded: {over_budget}"
            if error:
                is_over = self._limits.has_too_many(state.tokens_of_chain)
                failure = {OVER_TOKENS: state.tokens_of_chain} if is_over else failure_of(None, state.answered)
                self._move(Write(states.FAIL, {"error": error, "failure": failure}), self._writes.put_now)
                self.job.cancelled.set(error)
        finally:
            self._writes.turn.release()

    def _enforce_limits_now(self) -> None:
        with suppress(DatabaseUnavailable):  # the runner enforces them again within a second
            self.enforce_limits()

    def _move(self, write: Write, put: Callable[[Write], bool] | None = None) -> None:
        target = write.move.target
        write = replace(write, values={**self._state.cost, **write.values})
        if (put or self._writes.put)(write):
            log.info("%s", target, extra={"execution_id": self.execution_id})
        if target in states.OVER and (self._row.webhooks or self._state.steps or self._state.has_flow_state):
            self._database.erased.set()


def _job(
    database: Database,
    row: Row[Any],
    done: list[Any],
    answered: Question | None,
    printed: PrintedWriter,
    stored_files: files.Files,
) -> Job:
    cancelled = Cancellation()
    return Job(
        row.id,
        row.inputs,
        done,
        None if answered is None else answered.for_crew(),
        restore_from=row.restore_from,
        owner=row.owner,
        printed=printed.of(row.id),
        steps=row.steps,
        cancelled=cancelled,
        # Not a segment's methods: it references the job, and only the garbage collector would free such a cycle.
        recorded=partial(_recorded, database, row.id, cancelled),
        flow_state=partial(_read, database, cancelled, lambda connection: flow_states.get(connection, row.id)),
        files=[InputFile(**each) for each in row.files or ()],
        read_file=partial(files.read, database, cancelled=cancelled),
        largest_file=stored_files.limits.of_file,
        written=partial(_read, database, cancelled, lambda connection: output_files.newest(connection, row.id)),
    )


def _with_files(store: Store | None, change: Callable[[Connection], None]) -> Store:
    """Return a write that also changes the execution's files."""

    def both(connection: Connection, now: float) -> None:
        if store:
            store(connection, now)
        change(connection)

    return both


def _recorded(
    database: Database, execution_id: str, cancelled: Cancellation, *, only_once: bool = False
) -> list[JournalEntry]:
    entries = partial(journal.entries, execution_id=execution_id, only_once=only_once)
    return [JournalEntry(**entry) for entry in _read(database, cancelled, entries)]


def _read(database: Database, cancelled: Cancellation, read: Callable[[Connection], Read]) -> Read:
    def reading() -> Read:
        with database.reading() as connection:
            return read(connection)

    return retrying.until_available(reading, cancelled)[0]


def _record(connection: Connection, execution_id: str, step: Step, entry: dict[str, Any], *, now: float) -> None:
    """Record a tool call when it starts and when it ends, but a model call or memory lookup once, with its answer."""
    write = journal.put if step.kind == "tool" and step.answer is not None else journal.add
    if step.is_approved and step.answer is None:
        write = journal.carry_out
    write(connection, execution_id, entry, now=now)
