"""Runs one segment of an execution, from its claim to its end, and stores the crew's reports.

Every write is fenced by the claim, so that a segment changes nothing once its execution has ended or is running
elsewhere. Each write is numbered, so that it is applied only once, even if it is retried until the database accepts it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any
from uuid import uuid4

from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import SQLAlchemyError

from crew_service import tracing
from crew_service.engine import asks, events, machine, retrying, steps, tool_rules, usage
from crew_service.engine.continuing import OVER_TOKENS, failure_of
from crew_service.engine.crew import (
    Cancellation,
    Cancelled,
    Crew,
    CrewFailed,
    CrewKilled,
    Job,
    JournalEntry,
    Outcome,
    PendingQuestion,
    PendingReview,
    Progress,
    ReviewDecision,
    Round,
    Step,
    StepDone,
    StepsReplayed,
    TaskDone,
    TaskStarted,
    TokensUsed,
)
from crew_service.engine.drafts import hashes_of
from crew_service.engine.limits import Limits
from crew_service.engine.printed_writer import PrintedWriter
from crew_service.storage import flow_states, journal, queries, questions, schema, states, webhooks
from crew_service.storage import steps as stored_steps
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database
from crew_service.storage.json_values import tidy

log = logging.getLogger(__name__)

SHOWN = ("task_id", "output", "agent", "execution_time")  # per task, when the crew has finished
MOST_TOKENS = 2**31 - 1  # the maximum of the column `tokens`; `usage` has the exact number
News = tuple[str, dict[str, Any]]  # a webhook's kind and body
Result = tuple[Any, dict[str, Any], str | None]  # a finished task, its figures, and its digest
Store = Callable[[Connection, float], None]  # writes in a transaction, at the given time
MOST_OPEN = 200  # tasks that have started but not finished
MOST_KILLS = 3  # times that a killed crew process is restarted without a new step in between
MOST_LOSSES = 10  # of service processes running an execution; higher, because another execution may be to blame
LOST = (
    f"{MOST_LOSSES} crew service processes ended or stopped responding while running this execution, which made no "
    "progress in between, so it will not be restarted. Check their logs and memory."
)


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
    ) -> None:
        self.execution_id: str = row.id
        self._fence = queries.Fence(row.id, row.segment, 0)
        self._calm = queries.Calm.of(row)
        self._database = database
        self._row = row
        self._limits = limits.lowered(row.limits)
        self._fresh_ids = fresh_ids
        self._posted = posted
        self._spent = spent
        self._printed = printed
        self._began = time.monotonic()
        self._writing = threading.Lock()
        self._trouble: Exception | None = None  # the last exception raised by a report
        self._done = list(done)
        self._used_before = _used_before(row)
        self._used = self._used_before
        self._used_earlier = usage.earlier(row)["total_tokens"]
        self._digests: dict[str, str] = {}
        self._tasks = OpenTasks(row)
        self._stream = events.Stream((row.webhooks or {}).get("events"))
        cancelled = Cancellation()
        self.job = Job(
            row.id,
            row.inputs,
            done,
            _decided(row.gate),
            restore_from=row.restore_from,
            owner=row.owner,
            printed=printed.of(row.id),
            steps=row.steps,
            cancelled=cancelled,
            # Not a method: the segment references the job, and only the garbage collector would free such a cycle.
            recorded=partial(_recorded, database, row.id, cancelled),
            flow_state=partial(_flow_state, database, row.id, cancelled),
        )
        self._steps: int = row.steps
        self._has_state = bool(done) or row.gate is not None  # of a Flow, perhaps; it may contain secrets
        self._kills: int = row.kills

    @property
    def work_seconds(self) -> float:
        """Return the whole execution's work time so far, in seconds."""
        before: float = self._row.work_seconds
        return before + time.monotonic() - self._began

    def run(self, crew: Crew) -> None:
        """Run the crew and record how the segment ended; let `Cancelled`, machine and database errors propagate."""
        if self._row.losses >= MOST_LOSSES:
            self.fail(LOST)
            return
        self._digests = {task.id: task.digest for task in crew.tasks}
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
        if not self._steps:
            return
        for call in _recorded(self._database, self.execution_id, self.job.cancelled, only_once=True):
            if call.task_id and self._is_gone(call) and asks.may_have_run(call):
                raise CrewFailed(tool_rules.task_gone(call.name, call.task_id))

    def _is_gone(self, call: JournalEntry) -> bool:
        """Return whether a call's task is no longer among the crew's tasks, or now has another id."""
        digest = self._digests.get(call.task_id)
        return digest is None or (digest != call.digest and call.digest in self._digests.values())

    def _go_on_after(self, killed: CrewKilled) -> None:
        """Rerun the task with its journal, but only a limited number of times."""
        if self._kills >= MOST_KILLS:
            self.fail(f"{killed} It was restarted {MOST_KILLS} times without making progress.")
            return
        log.warning("%s Restarting it.", killed, extra={"execution_id": self.execution_id})
        self._move(states.REQUEUE, due_at=self._database.now(), kills=self._kills + 1)

    def report(self, progress: Progress) -> None:
        try:
            self._report(progress)
        except Exception as error:
            self._trouble = error
            raise

    def _report(self, progress: Progress) -> None:
        self.job.cancelled.raise_if_set()
        match progress:
            case TokensUsed(total, parts, by_task):
                self._used = usage.added(self._used_before, usage.counted({**parts, "total_tokens": total}))
                self._spent(self._tasks.count(by_task))
                self._enforce_limits_now()
                self.job.cancelled.raise_if_set()
                written = self._write(states.NOTE, is_calm=True, **self._cost)
            case TaskStarted(task_id, agent):
                self._tasks.begin(task_id, agent, now=self._database.now())
                begun = {"current_task": task_id, "current_agent": agent, **self._tasks.values}
                written = self._write(states.NOTE, **tidy(begun))
            case StepDone():
                step = steps.told_at_once(progress, self.job.printed)
                written = self._write(states.NOTE, news=("step", step), is_calm=True, last_step=step)
            case TaskDone(task, flow_state):
                written = self._finish(tidy(task), flow_state)
            case Step():
                written = self._note(progress)
            case StepsReplayed(numbers):
                log.info("steps taken from the journal: %d", len(numbers), extra={"execution_id": self.execution_id})
                written = self._write(states.NOTE, store=self._mark_replayed(numbers), is_calm=True)
        if not written:
            raise Cancelled("the execution is no longer running here")
        self._posted()

    def enforce_limits(self) -> None:
        """Fail and cancel the execution if it exceeds a limit, but not during a write, which does not count as work."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            tokens = self._used["total_tokens"]
            error = self._limits.exceeded(self.work_seconds, tokens, self._used_earlier)
            if error:
                is_over = self._limits.has_too_many(tokens + self._used_earlier)
                failure = {OVER_TOKENS: tokens + self._used_earlier} if is_over else failure_of(None, self._row.gate)
                self._move_once(states.FAIL, error=error, failure=failure)
                self.job.cancelled.set(error)
        finally:
            self._writing.release()

    def _enforce_limits_now(self) -> None:
        with suppress(DatabaseUnavailable):  # the runner enforces them again within a second
            self.enforce_limits()

    def requeue(self) -> None:
        """Return the execution to the queue, to continue from its last finished task."""
        now = self._database.now()
        with self._writing, self._database.writing() as connection:
            queries.write_fenced(
                connection, self._fence, states.REQUEUE, now=now, due_at=now, work_seconds=self.work_seconds
            )

    def _mark_replayed(self, numbers: list[int]) -> Store:
        return lambda connection, now: stored_steps.mark_replayed(connection, self.execution_id, numbers)

    def _note(self, step: Step) -> bool:
        """Store a step. A step that the journal keeps counts as progress since the process was last killed."""
        if step.is_kept:
            self._kills = 0
        is_known = step.number <= self._steps
        self._steps = max(self._steps, step.number)
        shown = steps.stored(step, self.job.printed)

        def store(connection: Connection, now: float) -> None:
            if step.is_kept:
                _record(connection, self.execution_id, step, self._kept(step), now=now)
            if step.state == steps.RUNNING:
                begun = {**shown, "segment": self._fence.segment, "began_at": now}
                stored_steps.begin(connection, self.execution_id, begun, again=is_known)
            else:
                stored_steps.end(connection, self.execution_id, shown)

        return self._write(states.NOTE, store=store, is_calm=True, steps=self._steps, kills=self._kills)

    def _kept(self, entry: JournalEntry) -> dict[str, Any]:
        """Return a call in its stored form."""
        kept = {each.name: getattr(entry, each.name) for each in fields(JournalEntry)}
        texts = tidy({"task_id": entry.task_id, "name": entry.name, "decision": entry.decision})
        return {**kept, **texts, "digest": self._digests.get(entry.task_id)}

    def _put_state(self, flow_state: str | None) -> Store | None:
        if flow_state is None:
            return None
        self._has_state = True
        return lambda connection, now: flow_states.put(connection, self.execution_id, flow_state)

    def _finish(self, task: Any, flow_state: str | None) -> bool:
        hidden = ("task_id", "execution_time", "point")
        shown = {name: value for name, value in task.items() if name != "point"}
        figures = self._tasks.end(task)
        values: dict[str, Any] = {"completed_tasks": len(self._done) + 1, "last_task": shown}
        values |= {"work_seconds": self.work_seconds, "counted_at": self._database.now(), "kills": 0, **self._cost}
        news = ("task", {k: v for k, v in task.items() if k not in hidden})
        result = (task, figures, self._digests.get(task["task_id"]))
        written = self._write(states.NOTE, news=news, task=result, store=self._put_state(flow_state), **values)
        self._done.append(task)
        self._kills = 0
        if self._steps:
            self._database.erased.set()
        return written

    @property
    def _cost(self) -> dict[str, Any]:
        return {"tokens": min(self._used["total_tokens"], MOST_TOKENS), "usage": self._used, **self._tasks.values}

    def fail(self, error: str, failed: CrewFailed | None = None) -> None:
        """End the execution with an error; secrets in an exception's text are masked here."""
        failure = tidy(failure_of(failed, self._row.gate))
        self._move(states.FAIL, error=self.job.printed.masked(tidy(error)), failure=failure)

    def _end(self, outcome: Outcome) -> None:
        if isinstance(outcome, PendingReview):
            self._wait(outcome)
            return
        if isinstance(outcome, PendingQuestion):
            self._ask(outcome)
            return
        output, output_json = tidy([outcome.output, outcome.output_json])
        # The crew's own counts do not include segments that ended in a crash.
        self._used = max(self._used, usage.counted(outcome.usage), key=lambda used: used["total_tokens"])
        self._move(
            states.COMPLETE,
            ("crew", {"result": output, "result_json": output_json, "token_usage": self._used}),
            tasks=[{name: value for name, value in task.items() if name in SHOWN} for task in self._done],
            output=output,
            output_json=output_json,
            current_task=None,
        )

    def _wait(self, question: PendingReview) -> None:
        is_flow = question.outcomes is not None
        key = str(uuid4()) if self._fresh_ids and not is_flow else question.task_id
        gate: dict[str, Any] = {
            "task_id": question.task_id,
            "key": key,
            "output": question.output,
            "agent": question.agent,
            "state": question.state,
            "question": question.question,
            "outcomes": question.outcomes,
            "details": question.details,
            "question_id": str(uuid4()) if is_flow else None,
            "rounds": self._row.gate["rounds"] if _same_gate(self._row.gate, question) else [],
        }
        gate = tidy(gate)
        gate |= hashes_of(gate["output"])
        body: dict[str, Any] = {"execution_id": self.execution_id, "task_id": key, "task_output": question.output}
        if is_flow:
            body |= {"question": question.question, "outcomes": question.outcomes}
        store = self._put_state(question.flow_state)
        self._pause(gate, tidy(body), store=store, current_task=question.task_id, current_agent=question.agent)

    def _ask(self, question: PendingQuestion) -> None:
        """Wait for a person's decision on a call; fail if nobody can be asked or an earlier release is also running."""
        if self._fresh_ids or not self._keeps_out_earlier():
            self.fail(asks.failure_of(question, self.job.printed))
            return
        gate = asks.gate_of(question, len(self._row.asked) + 1, self.job.printed, self._row.gate)
        gate |= hashes_of(gate["output"])
        body = {"execution_id": self.execution_id, "task_id": gate["key"], "task_output": gate["output"]}
        body |= {name: gate[name] for name in ("question", "outcomes", "ask")}
        self._steps = max(self._steps, question.entry.number)
        self._pause(
            gate,
            body,
            store=lambda connection, now: journal.put(
                connection, self.execution_id, self._kept(question.entry), now=now
            ),
            steps=self._steps,
            kills=0,
        )

    def _keeps_out_earlier(self) -> bool:
        with self._writing:
            return self._patiently(lambda: self._database.keeps_out_earlier(schema.WITH_ASKS))

    def _pause(self, gate: dict[str, Any], body: dict[str, Any], **values: Any) -> None:
        asked = [*self._row.asked, gate["key"]]
        self._move(states.WAIT, ("human_input", body), gate=gate, asked=asked, **values)

    def _move(self, step: states.Move, news: News | None = None, **values: Any) -> None:
        with self._writing:
            self._patiently(lambda: self._move_once(step, news, **values))

    def _move_once(self, step: states.Move, news: News | None = None, **values: Any) -> bool:
        over = queries.ended(self._database.now()) if step.target in states.OVER else {}
        moved = self._write_once(step, news, work_seconds=self.work_seconds, **self._cost, **over, **values)
        if over and (self._row.webhooks or self._steps or self._has_state):
            self._database.erased.set()
        if moved:
            log.info("%s", step.target, extra={"execution_id": self.execution_id})
        self._posted()
        return moved

    def _write(
        self,
        step: states.Move,
        news: News | None = None,
        task: Result | None = None,
        **more: Any,
    ) -> bool:
        with self._writing:
            return self._patiently(lambda: self._write_once(step, news, task, **more))

    def _patiently(self, write: Callable[[], bool]) -> bool:
        """Retry until the database accepts the write; the time until then does not count as the crew's work."""
        began = time.monotonic()
        written, tries = retrying.until_available(
            write, self.job.cancelled, lambda: self._database.availability.progressed_at
        )
        self._database.availability.progressed_at = time.monotonic()
        if tries > 1:
            self._began += time.monotonic() - began
        return written

    def _write_once(
        self,
        step: states.Move,
        news: News | None = None,
        task: Result | None = None,
        store: Store | None = None,
        is_calm: bool = False,
        **values: Any,
    ) -> bool:
        """Write the row and everything that belongs to it in one transaction; return True if written, now or earlier.

        :param is_calm: whether the write may become visible a little later
        """
        now = self._database.now()
        happened = self._happened(step, news, values, now)
        is_pause = step is not states.NOTE or task is not None
        calm = self._calm.next(now) if is_calm else self._calm
        with self._database.writing() as connection:
            noted = calm.values if is_calm else {}
            if not queries.write_fenced(connection, self._fence, step, now=now, **noted, **values):
                if not queries.was_written(connection, self._fence, step):
                    return False
            else:
                if task is not None:
                    queries.add_result(connection, self.execution_id, len(self._done), *task)
                if store is not None:
                    store(connection, now)
                if step is states.WAIT:
                    questions.open_round(connection, self.execution_id, len(values["asked"]), values["gate"], now=now)
                if question_id := (values.get("gate") or {}).get("question_id"):
                    questions.ask(connection, question_id, self.execution_id, now=now)
                if news:
                    self._post(connection, *news, now=now)
                self._tell(connection, self._stream.due(happened, is_pause=is_pause), now)
        self._stream.sent(happened, is_pause=is_pause)
        self._fence, self._calm = self._fence._replace(writes=self._fence.writes + 1), calm
        return True

    def _happened(self, step: states.Move, news: News | None, values: dict[str, Any], now: float) -> list[events.Event]:
        if self._stream.hook is None:
            return []
        is_first = self._row.segment == 1 and self._fence.writes == 0
        start = [events.started(self._row.inputs, now=now)] if is_first else []
        return [*start, *events.of_write(step, news, values, now=now)]

    def _tell(self, connection: Connection, due: list[events.Event], now: float) -> None:
        if due and self._stream.hook:
            body = events.body(self.execution_id, due)
            webhooks.post(connection, self.execution_id, "events", self._stream.hook, body, now=now)

    def _post(self, connection: Connection, kind: str, body: dict[str, Any], *, now: float) -> None:
        hook = (self._row.webhooks or {}).get(kind)
        if hook:
            full = {**body, "kickoff_id": self._row.kickoff_id, "meta": self._row.meta}
            webhooks.post(connection, self.execution_id, kind, hook, full, now=now)


class OpenTasks:
    """The unfinished tasks with their start times, agents and usage, and the execution's usage by model."""

    def __init__(self, row: Row[Any]) -> None:
        self._models = usage.read(row.model_usage)
        self._open: dict[str, dict[str, Any]] = {name: dict(task) for name, task in (row.open_tasks or {}).items()}
        self._counted: dict[tuple[str, str], usage.Figures] = {}  # in this segment

    @property
    def values(self) -> dict[str, Any]:
        """Return the columns to store."""
        return {"model_usage": self._models or None, "open_tasks": self._open or None}

    def begin(self, task_id: str, agent: str, *, now: float) -> None:
        if (task := self._task(task_id)) is not None:
            task["agent"] = agent
            task.setdefault("started_at", now)

    def count(self, by_task: Mapping[str, Mapping[str, Any]]) -> usage.ByModel:
        """Apply this segment's counts; return the increase by model."""
        changed: dict[str, Counter[str]] = defaultdict(Counter)  # usage moved to another task is subtracted here
        for task_id, models in by_task.items():
            for model, given in models.items():
                figures = usage.of_model(given)
                more = usage.since(figures, self._counted.get((task_id, model), {}))
                self._counted[task_id, model] = figures
                changed[model].update(more)
                if (task := self._task(task_id)) is not None:
                    usage.add_to(task.setdefault("usage", {}), model, more, most=usage.MOST_MODELS_OF_TASK)
        for model, more in changed.items():
            usage.add_to(self._models, model, more)
        return {model: usage.of_model(dict(more)) for model, more in changed.items()}

    def end(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return a finished task's times and usage."""
        known = self._open.pop(task["task_id"], {})
        return {
            "started_at": known.get("started_at"),
            "seconds": task["execution_time"],
            "usage": known.get("usage", {}),
        }

    def _task(self, task_id: str) -> dict[str, Any] | None:
        if not task_id or (task_id not in self._open and len(self._open) >= MOST_OPEN):
            return None
        return self._open.setdefault(task_id, {})


def _recorded(
    database: Database, execution_id: str, cancelled: Cancellation, *, only_once: bool = False
) -> list[JournalEntry]:
    def read() -> list[JournalEntry]:
        with database.reading() as connection:
            return [JournalEntry(**entry) for entry in journal.entries(connection, execution_id, only_once=only_once)]

    return retrying.until_available(read, cancelled)[0]


def _flow_state(database: Database, execution_id: str, cancelled: Cancellation) -> str | None:
    def read() -> str | None:
        with database.reading() as connection:
            return flow_states.get(connection, execution_id)

    return retrying.until_available(read, cancelled)[0]


def _record(connection: Connection, execution_id: str, step: Step, entry: dict[str, Any], *, now: float) -> None:
    """Record a tool call when it starts and when it ends, but a model call or memory lookup once, with its answer."""
    write = journal.put if step.kind == "tool" and step.answer is not None else journal.add
    if step.is_approved and step.answer is None:
        write = journal.carry_out
    write(connection, execution_id, entry, now=now)


def _used_before(row: Row[Any]) -> usage.Usage:
    """Return the usage of earlier segments; before release 0.2.0, only the gate contained its parts."""
    kept = ((row.gate or {}).get("state") or {}).get("usage")
    given = usage.counted(kept if row.usage is None else row.usage)
    return {**given, "total_tokens": max(given["total_tokens"], row.tokens)}


def _same_gate(gate: dict[str, Any] | None, question: PendingReview) -> bool:
    return gate is not None and gate["task_id"] == question.task_id


def _decided(gate: dict[str, Any] | None) -> ReviewDecision | None:
    if gate is None:
        return None
    rounds = tuple(Round(round["output"], round["feedback"]) for round in gate["rounds"])
    return ReviewDecision(gate["task_id"], gate["is_approve"], rounds, gate["state"], gate.get("outcome"))
