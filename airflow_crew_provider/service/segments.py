"""One segment of an execution, from its claim to its end: what the crew reports becomes durable here.

Every write is guarded by the segment's number, so that an abandoned segment changes nothing any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Row

from . import ledger, states
from .crews import (
    Cancelled,
    Completed,
    Crew,
    CrewFailed,
    Gate,
    Job,
    Progress,
    Round,
    StepDone,
    TaskDone,
    TaskStarted,
    Waiting,
)
from .store import Store

log = logging.getLogger(__name__)

TOLD = ("task_id", "output", "agent", "execution_time")  # of each task, when the crew is finished


class Segment:
    def __init__(self, store: Store, row: Row[Any], *, fresh_ids: bool, posted: Callable[[], None]) -> None:
        self.execution_id: str = row.id
        self.number: int = row.segment
        self._store = store
        self._row = row
        self._fresh_ids = fresh_ids
        self._posted = posted
        self._began = time.monotonic()
        with store.reading() as connection:
            done = ledger.tasks_of(connection, row.id)
        self._done = list(done)
        self.job = Job(row.id, row.inputs, done, _decided(row.gate))

    @property
    def work_seconds(self) -> float:
        """Seconds of work of the whole execution so far."""
        return self._row.work_seconds + time.monotonic() - self._began

    def run(self, crew: Crew) -> None:
        """Run the crew and record how the segment ended; `Cancelled` goes on to the caller."""
        self._stop_if_stopped()
        try:
            outcome = crew.run(self.job, self.report)
        except Cancelled:
            raise
        except CrewFailed as failure:
            self.fail(str(failure))
        except BaseException as failure:  # even SystemExit of a crew must not end the service
            self.fail(f"{type(failure).__name__}: {failure}")
        else:
            self._end(outcome)

    def _stop_if_stopped(self) -> None:
        """A stop that came after the claim, before this segment could be told of it."""
        with self._store.reading() as connection:
            row = ledger.by_id(connection, self.execution_id)
        if row is None or row.state != states.State.RUNNING:
            raise Cancelled("stopped before it began")

    def report(self, progress: Progress) -> None:
        self.job.cancelled.raise_if_set()
        now = time.time()
        with self._store.writing() as connection:
            if not self._record(connection, progress, now):
                raise Cancelled("the execution is not running any more")
        self._posted()

    def fail(self, error: str) -> None:
        self._move(states.FAIL, error=ledger.tidy(error))

    def requeue(self) -> None:
        """Give the execution back, to go on from its last finished task."""
        now = time.time()
        with self._store.writing() as connection:
            ledger.move(
                connection,
                self.execution_id,
                states.REQUEUE,
                now=now,
                within=self.number,
                due_at=now,
                work_seconds=self.work_seconds,
            )

    def _record(self, connection: Connection, progress: Progress, now: float) -> bool:
        values: dict[str, Any]
        match progress:
            case TaskStarted(task_id, agent):
                values = {"current_task": task_id, "current_agent": agent}
            case StepDone():
                step = ledger.tidy(vars(progress))
                values = {"last_step": step}
                self._post(connection, "step", step, now)
            case TaskDone(task):
                values = self._finish(connection, ledger.tidy(task), now)
        return ledger.note(connection, self.execution_id, within=self.number, now=now, **values)

    def _finish(self, connection: Connection, task: Any, now: float) -> dict[str, Any]:
        ledger.add_result(connection, self.execution_id, len(self._done), task)
        hidden = ("task_id", "execution_time")
        self._post(connection, "task", {k: v for k, v in task.items() if k not in hidden}, now)
        self._done.append(task)
        values = {
            "completed_tasks": len(self._done),
            "last_task": task,
            "work_seconds": self.work_seconds,
            "counted_at": now,
        }
        if self._row.gate and self._row.gate["task_id"] == task["task_id"]:
            values["gate"] = None
        return values

    def _end(self, outcome: Completed | Waiting) -> None:
        if isinstance(outcome, Waiting):
            self._wait(outcome)
            return
        output, output_json, usage = ledger.tidy([outcome.output, outcome.output_json, outcome.usage])
        self._move(
            states.COMPLETE,
            ("crew", {"result": output, "result_json": output_json, "token_usage": usage}),
            tasks=[{name: value for name, value in task.items() if name in TOLD} for task in self._done],
            output=output,
            output_json=output_json,
            usage=usage,
            current_task=None,
        )

    def _wait(self, question: Waiting) -> None:
        key = str(uuid4()) if self._fresh_ids else question.task_id
        gate = {
            "task_id": question.task_id,
            "key": key,
            "output": question.output,
            "agent": question.agent,
            "state": question.state,
            "rounds": self._row.gate["rounds"] if _same_gate(self._row.gate, question) else [],
        }
        body = {"execution_id": self.execution_id, "task_id": key, "task_output": question.output}
        self._move(
            states.WAIT,
            ("human_input", ledger.tidy(body)),
            gate=ledger.tidy(gate),
            asked=[*self._row.asked, key],
            current_task=question.task_id,
            current_agent=question.agent,
        )

    def _move(self, step: states.Move, news: tuple[str, dict[str, Any]] | None = None, **values: Any) -> None:
        now = time.time()
        over = ledger.ended(now) if step.target in states.OVER else {}
        with self._store.writing() as connection:
            moved = ledger.move(
                connection,
                self.execution_id,
                step,
                now=now,
                within=self.number,
                work_seconds=self.work_seconds,
                **over,
                **values,
            )
            if moved and news:
                self._post(connection, *news, now)
        if over and self._row.webhooks:
            self._store.erased.set()
        if moved:
            log.info("%s", step.target, extra={"execution_id": self.execution_id})
        self._posted()

    def _post(self, connection: Connection, kind: str, body: dict[str, Any], now: float) -> None:
        hook = (self._row.webhooks or {}).get(kind)
        if hook:
            full = {**body, "kickoff_id": self._row.kickoff_id, "meta": self._row.meta}
            ledger.post(connection, self.execution_id, kind, hook["url"], full, now=now)


def _same_gate(gate: dict[str, Any] | None, question: Waiting) -> bool:
    return gate is not None and gate["task_id"] == question.task_id


def _decided(gate: dict[str, Any] | None) -> Gate | None:
    if gate is None:
        return None
    rounds = tuple(Round(round["output"], round["feedback"]) for round in gate["rounds"])
    return Gate(gate["task_id"], gate["is_approve"], rounds, gate["state"])
