"""The engine's view of a CrewAI crew: every segment runs in a process of its own, which can be killed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

from crew_service import tracing
from crew_service.crewai import serialization
from crew_service.crewai.channel import LINK_CLOSED, Message
from crew_service.crewai.process_pool import CrewProcess, ProcessPool, ProcessPoolClosed
from crew_service.engine.crew import (
    BadTarget,
    Cancellation,
    Cancelled,
    Completed,
    CrewFailed,
    Job,
    PendingReview,
    Report,
    TaskDone,
    TaskInfo,
)
from crew_service.engine.printed import Printed

log = logging.getLogger(__name__)

PROCESSES = ProcessPool()  # one for all crews of the service: it knows none of them
BATCH = 0.2  # seconds between two checks of a job's cancellation
LOADING = 120.0  # seconds for the modules of a target to be imported when the service starts
CHECKING = 60.0  # seconds for the model and the guardrail of a task to look at an edited answer
CHECKS = threading.BoundedSemaphore(2)
LONGEST_TRACE = 10_000  # characters
LONGEST = 1_000  # characters of what is wrong with a target; a validation can say a lot


class CrewAICrew:
    isolation: Literal["process"] = "process"

    def __init__(self, target: str) -> None:
        self._target = target
        description, self._secrets = _description(target)
        self.kind: Literal["crew", "flow"] = description["kind"]
        self.inputs: list[str] = description["inputs"]
        self.required: list[str] = description["required"]
        self.tasks = [TaskInfo(**task) for task in description["tasks"]]

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        job.printed.hide(self._secrets)
        with PROCESSES.worker(job.printed.add) as worker:
            worker.send({"target": self._target, "job": serialization.job_message(job), "trace": tracing.carrier()})
            for message in _messages(worker, job.cancelled):
                if message["type"] == "refused":
                    raise _not_loaded(job, message)
                record = serialization.unpacked(message)
                if isinstance(record, Completed | PendingReview):
                    worker.dismiss()
                    return record
                if record is not None:
                    report(record)
                if isinstance(record, TaskDone):
                    worker.send({"type": "stored"})
        raise CrewFailed("The crew's process ended before the crew was done.")

    def edit_problem(self, task_id: str, state: dict[str, Any], text: str) -> str | None:
        """Ask a process, since models and guardrails are the crew's own code; few at once, since each is a process."""
        edit = {"task_id": task_id, "state": state, "text": text}
        try:
            with CHECKS:
                said = _asked({"target": self._target, "edit": edit}, "checked", seconds=CHECKING, take=_nowhere)
        except (Cancelled, CrewFailed, ProcessPoolClosed) as error:
            problem: str | None = f"it cannot be checked now: {error}"
        else:
            problem = said.get("problem", said.get("reason"))
        printed = Printed()
        printed.hide(self._secrets)
        return problem and _line(printed.masked(problem))


def _nowhere(printed: bytes) -> None:
    """What a guardrail prints may be the draft, which does not belong in the log."""


def _not_loaded(job: Job, message: Message) -> CrewFailed:
    """Log why a crew that could be loaded when the service started cannot be now."""
    said = job.printed.masked(message.get("trace") or message["reason"])[-LONGEST_TRACE:]
    log.error("the crew cannot be loaded: %s", said, extra={"execution_id": job.execution_id})
    return CrewFailed(message["reason"])


def _description(target: str) -> tuple[Message, list[str]]:
    """Ask a process for the crew's inputs and tasks, and for secrets; whatever is wrong is a `BadTarget`."""
    try:
        said = _asked({"target": target}, "description", seconds=LOADING)
    except (Cancelled, CrewFailed, ProcessPoolClosed) as error:
        raise BadTarget(f"The crew {target!r} cannot be loaded: {_line(str(error))}") from None
    if said["type"] == "refused":
        raise BadTarget(f"The crew {target!r} cannot be served: {said['reason']}")
    return said["described"], said["secrets"]


def _asked(request: Message, answer: str, *, seconds: float, take: Callable[[bytes], None] | None = None) -> Message:
    """Ask a process something about the crew; it answers, or refuses the crew."""
    limit = Cancellation()
    timer = threading.Timer(seconds, limit.set, [f"it takes more than {seconds:g} seconds"])
    timer.daemon = True
    timer.start()
    try:
        with PROCESSES.worker(take) as worker:
            worker.send(request)
            for message in _messages(worker, limit):
                if message["type"] in (answer, "refused"):
                    worker.dismiss()
                    return message
        raise CrewFailed("its process ended.")
    finally:
        timer.cancel()


def _line(text: str) -> str:
    return " ".join(text.split())[:LONGEST]


def _messages(worker: CrewProcess, cancelled: Cancellation) -> Iterator[Message]:
    """Give what the process says to its end; the crew's failure and a sudden end are errors."""
    while True:
        cancelled.raise_if_set()
        try:
            message = worker.receive(BATCH)
        except TimeoutError:
            continue
        if message is None:
            return
        if message["type"] == "failed":
            worker.dismiss()
            raise CrewFailed(message["error"])
        if message["type"] == "died":
            raise CrewFailed(f"The crew's process {_ended(message['code'])} before the crew was done.")
        yield message


def _ended(code: int) -> str:
    if code == LINK_CLOSED:
        return "was ended, since it had closed the descriptor through which it reports to the service,"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
