"""What a wait has seen of its execution, and the lines that it logs about it. No I/O is done and no clock is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from airflow_crew_provider import exceptions
from airflow_crew_provider.models import Execution, ExecutionState, TaskResult
from airflow_crew_provider.questions import question_of

NOBODY_IS_ASKED = "This task keeps waiting and asks nobody; to ask a person, use CrewReviewOperator or crew_with_review"
HEARTBEAT = 300.0  # seconds between two lines if nothing has changed
MOST_TOLD = 20  # finished tasks logged per poll
AT_WORK = (ExecutionState.RUNNING, ExecutionState.PENDING, ExecutionState.COMPLETED)


@dataclass(kw_only=True, slots=True)
class Progress:
    """What a wait has seen.

    :param known: whether the service has shown this id in a state other than not found
    :param last: the last status of the execution
    :param failing_since: when polls began to fail, in epoch seconds; None if the last one did not
    :param retry_after: the pause that the last failure asked for, in seconds
    :param is_not_found: whether the last poll did not find the execution
    :param looked_up: when the connection was last looked up, in epoch seconds
    """

    known: bool = False
    last: Execution | None = field(default=None, repr=False)
    polls: int = 0
    failures: int = 0
    failing_since: float | None = None
    retry_after: float | None = None
    is_not_found: bool = False
    looked_up: float = float("-inf")
    ca_forgiven: bool = False

    def forgive(self) -> None:
        """Note that a poll did not fail."""
        self.failures, self.failing_since, self.retry_after, self.is_not_found = 0, None, None, False
        self.ca_forgiven = False

    def fail(self, error: exceptions.CrewError, now: float) -> None:
        """Note a failed poll."""
        self.failures += 1
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.retry_after = getattr(error, "retry_after", None)

    def may_be_renewed(self, error: exceptions.CrewError) -> bool:
        """Tolerate one failure due to a CA file, which may be replaced just before or after the server certificate."""
        forgiven = isinstance(error, exceptions.CrewConnectionError) and error.renewable and not self.ca_forgiven
        self.ca_forgiven = self.ca_forgiven or forgiven
        return forgiven

    def failing(self, now: float) -> str:
        """Return a phrase about the failed polls."""
        since = datetime.fromtimestamp(self.failing_since or now, UTC).isoformat(timespec="seconds")
        return f"The status request has failed {self.failures} times since {since}"

    def last_seen(self, kickoff_id: str) -> str:
        """Return a phrase about the last status; empty if there was none."""
        if self.last is None:
            return ""
        progress = f" ({self.last.progress})" if self.last.progress else ""
        return f"Execution {kickoff_id} was last seen {self.last.state}{progress}"

    def fate(self, kickoff_id: str) -> str:
        """Return a sentence about the execution's current state."""
        if self.last is None and self.known:
            return f"Execution {kickoff_id} is not affected and may still be active"
        if self.last is None:
            return f"Execution {kickoff_id} was never seen; if it exists, it may still be active"
        return f"{self.last_seen(kickoff_id)} and may still be active"


class Watched(Protocol):
    """The wait that a narrator follows."""

    kickoff_id: str
    started: float
    progress: Progress

    @property
    def passes_question(self) -> bool:
        """Whether a person is needed, and the wait continues anyway."""

    @property
    def longest_pause(self) -> float:
        """The longest pause between polls, in seconds."""


@dataclass(slots=True)
class Narrator:
    """What a wait has logged, and what it logs next.

    :param ended: the number of finished tasks already logged; None to log none
    """

    ended: int | None = 0
    _line: str = ""
    _at: float = float("-inf")
    _about: Execution | None = None
    _task: str | None = None
    _task_since: float = 0.0

    def has_told(self, reply: Execution | exceptions.CrewError, *, now: float) -> bool:
        """Return whether a poll shows the same as the last logged one, and that was logged recently."""
        return reply is self._about and now - self._at < HEARTBEAT

    def news(self, watch: Watched, *, now: float) -> str | None:
        """Return a log line if something has changed, and occasionally if nothing has."""
        progress, quiet = watch.progress, now - self._at < HEARTBEAT
        troubled = progress.failures or progress.is_not_found
        if quiet and not troubled and progress.last is not None and progress.last is self._about:
            return None
        line = _line(watch.kickoff_id, progress, now)
        self._about = None if troubled else progress.last
        if line == self._line and quiet:
            return None
        if progress.failures > 1 and now - self._at < watch.longest_pause:
            return None
        self._line, self._at = line, now
        if progress.failures:
            return line
        advice = f". {NOBODY_IS_ASKED}" if watch.passes_question and not progress.is_not_found else ""
        return f"{line}, {duration(now - watch.started)} so far{advice}"

    def has_ended_tasks(self, execution: Execution) -> bool:
        """Return whether the crew has finished tasks that have not been logged yet."""
        return self.ended is not None and _ended(execution) > self.ended

    def ended_tasks(
        self, kickoff_id: str, execution: Execution, results: Sequence[TaskResult], *, now: float
    ) -> list[str]:
        """Return the log lines for tasks that have finished since the last poll.

        :param results: all finished tasks in order, if the service reports them; otherwise, the previous current task
            is logged, with the time since it was first seen
        """
        if self.ended is None or execution.state not in AT_WORK:
            return []
        before, since = self._task, self._task_since
        if execution.current_task != before:
            self._task, self._task_since = execution.current_task, now
        has_changed = before is not None and before != execution.current_task
        has_ended = self.has_ended_tasks(execution)
        reported, self.ended = self.ended, max(self.ended, _ended(execution))
        new = results[reported : self.ended]
        if not new and has_changed and (has_ended or execution.completed_tasks is None):
            took = f"after about {duration(now - since)}"
            return [f"Execution {kickoff_id}: task {in_few_words(before or '')} has ended {took}"]
        lines = [f"Execution {kickoff_id}: {_told_of_task(each)}" for each in new[:MOST_TOLD]]
        return [*lines, f"... and {len(new) - MOST_TOLD} more tasks"] if len(new) > MOST_TOLD else lines


def _line(kickoff_id: str, progress: Progress, now: float) -> str:
    if progress.failures:
        return f"{progress.failing(now)}; execution {kickoff_id} is not affected, and polling continues"
    last = progress.last
    if progress.is_not_found and progress.known:
        return (
            f"The service no longer shows execution {kickoff_id}: it may be waiting for a person, but only "
            "the human-input webhook contains its task id. The wait continues"
        )
    if last is None:
        return f"The service does not know execution {kickoff_id} yet"
    if last.state is ExecutionState.PENDING:
        return waits_for_a_person(last)
    return f"Execution {kickoff_id} is {last.state}" + (f": {last.progress}" if last.progress else "")


def waits_for_a_person(execution: Execution) -> str:
    """Return a log line about a pending execution."""
    where = f" at task {in_few_words(task)}" if (task := execution.shown_task or execution.current_task) else ""
    summary = question_of(execution).summary
    why = f": {summary}" if summary else ""
    return f"Execution {execution.kickoff_id} is waiting for a person{where}{why}"


def in_few_words(text: str) -> str:
    """Return the beginning of a name that was chosen elsewhere, on one line."""
    return " ".join(text.split())[:60]


def _ended(execution: Execution) -> int:
    return max(execution.completed_tasks or 0, len(execution.tasks))


def _told_of_task(task: TaskResult) -> str:
    name = f"task {in_few_words(task.task_id)}" if task.task_id else "a task"
    by = f" by {in_few_words(task.agent)}" if task.agent else ""
    took = f" after {task.execution_time:,.1f} s" if task.execution_time is not None else ""
    return f"{name}{by} has ended{took}"


def duration(seconds: float) -> str:
    """Return a duration for a log line."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"
