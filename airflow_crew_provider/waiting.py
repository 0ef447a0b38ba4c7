"""What a look at the status means: keep waiting, or an outcome. Pure: `now` is an argument, in epoch seconds.

A failed look is not a failed crew: what may heal is forgiven for `FORGIVEN` seconds, what cannot heal ends the
wait at once. Worker and triggerer walk the same `steps`; only the way they look and sleep differs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewConnectionError,
    CrewError,
    CrewNotFound,
    CrewOutcomeUnknown,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
    CrewUnauthorized,
)
from airflow_crew_provider.models import Execution, ExecutionState, Json

FORGIVEN = 300.0
LEAST_FAILURES = 5
GRACE_FOR_UNKNOWN_ID = 300.0
LONGEST_RETRY_AFTER = 300.0
HEARTBEAT = 300.0
SHORTEST = 0.05
LEAST_LOOK = 1.0
SHARE_OF_TIME_WAITED = 0.02
SLOWEST = 6
JITTER = 0.2

COMPLETED, PENDING, FAILED, GAVE_UP, TIMEOUT, SEEN = "completed", "pending", "failed", "gave_up", "timeout", "seen"
KINDS = (COMPLETED, PENDING, FAILED, GAVE_UP, TIMEOUT, SEEN)


@dataclass(frozen=True)
class Outcome:
    """How a wait ended. Small, so that it can cross from the triggerer to a worker; the result is fetched there.

    ``kind`` is one of `KINDS`: the execution completed, is pending or failed; the wait gave up looking or
    reached its deadline; or (``seen``) the id is known now, which a wait that goes on must remember.
    """

    kind: str
    kickoff_id: str
    message: str = ""
    crew_task_id: str | None = None

    def to_event(self) -> Json:
        """Return the trigger event's payload."""
        return asdict(self)

    @classmethod
    def from_event(cls, event: Any) -> Outcome:
        """Read a trigger event; one that is missing or malformed is an error, never a success."""
        fields = event if isinstance(event, dict) else {}
        kind, kickoff_id, task_id = fields.get("kind"), fields.get("kickoff_id"), fields.get("crew_task_id")
        if kind not in KINDS or not isinstance(kickoff_id, str) or not isinstance(task_id, str | None):
            raise CrewProtocolError(f"The trigger's event cannot be read: {str(event)[:200]}")
        return cls(kind, kickoff_id, str(fields.get("message") or ""), task_id)


@dataclass(kw_only=True)
class Watch:
    """A wait for one execution, and what was learned while it lasted.

    :param started: when the wait began, in epoch seconds; kept over restarts
    :param deadline: when it ends, in epoch seconds; None for no end
    :param poll_interval: the shortest pause between two looks, in seconds
    :param wait_past_pending: whether an execution that waits for a person counts as in progress
    :param known: whether the service has shown this id in a state other than not found
    :param report_seen: whether to end the wait also when the id becomes known, which a restart must remember
    :param exponential_backoff: double the pause at each look instead of the adaptive pace
    :param max_wait: the longest such pause, in seconds
    """

    kickoff_id: str
    started: float
    deadline: float | None = None
    poll_interval: float = 10.0
    wait_past_pending: bool = False
    known: bool = False
    report_seen: bool = False
    exponential_backoff: bool = False
    max_wait: float | None = None
    last: Execution | None = field(default=None, repr=False)
    failing_since: float | None = None
    failures: int = 0
    looks: int = 0
    _retry_after: float | None = None
    _told: str = ""
    _told_at: float = float("-inf")

    def __post_init__(self) -> None:
        # Not max(): NaN would win.
        self.poll_interval = self.poll_interval if self.poll_interval >= SHORTEST else SHORTEST

    def saw(self, execution: Execution, *, now: float) -> Outcome | None:
        """Take in a look that was answered."""
        self._forgive()
        self.looks += 1
        if execution.state is ExecutionState.NOT_FOUND:
            return self._unknown(now)
        self.known, self.last = True, execution
        if execution.state is ExecutionState.COMPLETED:
            return self._outcome(COMPLETED)
        if execution.state is ExecutionState.ERROR:
            return self._outcome(FAILED, execution.error or "")
        if execution.state is ExecutionState.PENDING and not self.wait_past_pending and execution.crew_task_id:
            return Outcome(PENDING, self.kickoff_id, crew_task_id=execution.crew_task_id)
        return self._past_deadline(now)

    def failed(self, error: CrewError, *, now: float) -> Outcome | None:
        """Take in a look that failed."""
        self.looks += 1
        if isinstance(error, CrewNotFound):
            self._forgive()
            return self._unknown(now)
        if not _may_heal(error):
            return self._outcome(GAVE_UP, f"{error}. {self.fate}")
        self.failures += 1
        self.failing_since = now if self.failing_since is None else self.failing_since
        self._retry_after = getattr(error, "retry_after", None)
        if now - self.failing_since > FORGIVEN and self.failures >= LEAST_FAILURES:
            return self._outcome(GAVE_UP, f"{self._failing(now)}, the last time: {error}. {self.fate}")
        return self._past_deadline(now)

    def pause(self, *, now: float, draw: float | None = None) -> float:
        """Return the seconds until the next look, never past the deadline; ``draw`` is a random number in [0, 1)."""
        draw = random.random() if draw is None else draw  # noqa: S311 - jitter, not a secret
        slowest = SLOWEST * self.poll_interval
        if self._retry_after is not None:
            wanted = min(self._retry_after, LONGEST_RETRY_AFTER)
            slowest = max(slowest, LONGEST_RETRY_AFTER)
        elif self.failures:
            wanted = self.poll_interval * 2 ** min(self.failures - 1, 10)
        elif self.exponential_backoff:
            wanted = self.poll_interval * 2 ** min(max(self.looks - 1, 0), 20)
            slowest = self.max_wait if self.max_wait is not None else float(2**20)
        else:
            wanted = SHARE_OF_TIME_WAITED * (now - self.started)
        slowest = max(slowest, self.poll_interval)
        wanted = min(max(wanted, self.poll_interval), slowest)
        if self._retry_after is None:
            # Drawn between the limits, not cut off at them: waits that were begun together must drift apart.
            least, most = max(wanted * (1 - JITTER), self.poll_interval), min(wanted * (1 + JITTER), slowest)
            wanted = least + (most - least) * draw
        return wanted if self.deadline is None else max(0.0, min(wanted, self.deadline - now))

    def left(self, *, now: float) -> float | None:
        """Return the seconds that a look may take: until the deadline, and time enough for the last one."""
        return None if self.deadline is None else max(LEAST_LOOK, self.deadline - now)

    def news(self, *, now: float) -> str | None:
        """Return a line for the log when something changed, and now and then when nothing did."""
        line = self._line(now)
        if line == self._told and now - self._told_at < HEARTBEAT:
            return None
        if self.failures > 1 and now - self._told_at < self.poll_interval * SLOWEST:
            return None
        self._told, self._told_at = line, now
        return line if self.failures else f"{line}, {_duration(now - self.started)} so far"

    @property
    def fate(self) -> str:
        """Say what is known of the execution at this moment."""
        if self.last is None and self.known:
            return f"Execution {self.kickoff_id} is not affected and may go on at the service"
        if self.last is None:
            return f"Execution {self.kickoff_id} was not seen at the service; if it exists, it goes on"
        progress = f" ({self.last.progress})" if self.last.progress else ""
        return f"Execution {self.kickoff_id} was last seen {self.last.state}{progress} and may go on at the service"

    def _line(self, now: float) -> str:
        if self.failures:
            return f"{self._failing(now)}; execution {self.kickoff_id} is not affected, looking again"
        last = self.last
        if self._not_found_now and self.known:
            return (
                f"The service no longer shows execution {self.kickoff_id}: it may wait for a person, "
                "whose task id only the human-input webhook tells; waiting on"
            )
        if last is None:
            return f"The service does not know execution {self.kickoff_id} yet"
        if last.state is ExecutionState.PENDING:
            where = (
                f" at task {last.crew_task_id or last.current_task}" if last.crew_task_id or last.current_task else ""
            )
            return f"Execution {self.kickoff_id} waits for a person{where}"
        return f"Execution {self.kickoff_id} is {last.state}" + (f": {last.progress}" if last.progress else "")

    _not_found_now: bool = False

    def _unknown(self, now: float) -> Outcome | None:
        self._not_found_now = True
        if not self.known and now - self.started > GRACE_FOR_UNKNOWN_ID:
            message = (
                f"The service does not know this id: {self.kickoff_id}, {GRACE_FOR_UNKNOWN_ID:.0f} s after the wait "
                "began. Check the id, and that the connection is the one that the crew was started with"
            )
            return self._outcome(GAVE_UP, message)
        return self._past_deadline(now)

    def _forgive(self) -> None:
        self.failures, self.failing_since, self._retry_after, self._not_found_now = 0, None, None, False

    def _failing(self, now: float) -> str:
        since = datetime.fromtimestamp(self.failing_since or now, UTC).isoformat(timespec="seconds")
        return f"Looking at the status has failed {self.failures} times since {since}"

    def _past_deadline(self, now: float) -> Outcome | None:
        if self.deadline is None or now < self.deadline:
            return None
        waited = _duration(now - self.started)
        return self._outcome(TIMEOUT, f"The time to wait is over after {waited}. {self.fate}")

    def _outcome(self, kind: str, message: str = "") -> Outcome:
        return Outcome(kind, self.kickoff_id, message)


@dataclass(frozen=True)
class Look:
    """Asks for one look within so many seconds; the reply is an `Execution` or a `CrewError`."""

    timeout: float | None


@dataclass(frozen=True)
class Pause:
    """Asks to sleep so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Refresh:
    """Asks to look the connection up once more; the reply is whether its token has changed."""


Step = Look | Pause | Refresh


def steps(watch: Watch, clock: Callable[[], float], say: Callable[[str], None]) -> Generator[Step, Any, Outcome]:
    """Walk through a wait: yield what is to be done, be sent what came of it, return how it ended."""
    while True:
        was_known = watch.known
        reply = yield Look(watch.left(now=clock()))
        if isinstance(reply, CrewUnauthorized) and (yield Refresh()):
            reply = yield Look(watch.left(now=clock()))
        now = clock()
        outcome = watch.saw(reply, now=now) if isinstance(reply, Execution) else watch.failed(reply, now=now)
        if outcome is not None:
            return outcome
        line = watch.news(now=now)
        if line:
            say(line)
        if watch.report_seen and watch.known and not was_known:
            return Outcome(SEEN, watch.kickoff_id)
        yield Pause(watch.pause(now=now))


def _may_heal(error: CrewError) -> bool:
    if isinstance(error, CrewConnectionError):
        return not error.permanent
    if isinstance(error, CrewApiError) and error.status_code in (408, 425):
        return True
    return isinstance(error, CrewServerError | CrewRateLimited | CrewProtocolError | CrewOutcomeUnknown)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"
