"""The decision after each poll: keep waiting, or end with an outcome. No I/O is done and no clock is read; `now` is an
argument, in epoch seconds.

A wait moves through these states::

    not known ──a status──> known ──a question for a person─> pending
        │                     │└────a result────────────────> completed
        │                     │└────a failure───────────────> failed
        │                     │└────its usage───────────────> over_budget
        └──the grace expires──┴────failures, the deadline───> gave_up, timeout

* A failed poll is not a failed crew: transient failures are tolerated for `FORGIVEN` seconds; a permanent one ends the
  wait at once.
* An outdated connection cannot end a wait: the wait looks up its connection again right before a response or the
  deadline would end it, and before it gives up. It also does so from time to time while it continues or polls fail, at
  most once a minute for all waits in a process. If the lookup fails, the last known connection's response is used.
* A deadline is a point in time, so a restart of the triggerer neither shortens nor extends a wait.
* A draft that a resume has just answered is not treated as a new question while the status may lag behind.
* The same steps run in a worker and in a triggerer (`steps`), so the two cannot disagree about how a wait ends.
* A finished crew task is logged when a poll shows it. Its agent and duration are then requested once, if the service
  supports that; if the request fails, they are not logged.
* Only ids, figures and a short message are passed to another process. The result is fetched where it is used.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_crew_provider import exceptions
from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.api.budget import NO_BUDGET, Budget, figures
from airflow_crew_provider.models import OVER, Execution, ExecutionState, Json, TaskResult, shortened
from airflow_crew_provider.questions import question_of
from airflow_crew_provider.wait.narrator import Narrator, Progress, duration

COMPLETED, PENDING, FAILED, GAVE_UP, TIMEOUT, SEEN = "completed", "pending", "failed", "gave_up", "timeout", "seen"
OVER_BUDGET = "over_budget"
Reply = Execution | exceptions.CrewError  # to a poll
# The longest message in an outcome, which Airflow stores with the event; errors may be megabytes long.
LONGEST_MESSAGE = 2000
KINDS = (COMPLETED, PENDING, FAILED, GAVE_UP, TIMEOUT, SEEN, OVER_BUDGET)


@dataclass(frozen=True)
class Outcome:
    """The end of a wait, small enough to pass from the triggerer to a worker, which fetches the result.

    ``kind`` is one of `KINDS`: the execution has completed, is pending or has failed; the wait gave up polling or
    reached its deadline; (``seen``) the id is now known, which a continued wait must remember; or (``over_budget``) the
    execution has exceeded its limits. ``usage`` is that of a failed or over-budget execution, if known; ``error`` is
    that of the last poll (`exceptions.to_json`), if the wait gave up because of it.
    """

    kind: str
    kickoff_id: str
    message: str = ""
    crew_task_id: str | None = None
    usage: Json | None = None
    error: Json | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", shortened(self.message, LONGEST_MESSAGE))

    def to_event(self) -> Json:
        """Return the trigger event's payload."""
        event = asdict(self)
        return event if self.error else {name: value for name, value in event.items() if name != "error"}

    @classmethod
    def from_event(cls, event: Any) -> Outcome:
        """Read a trigger event; a missing or malformed one is an error, never a success."""
        fields = event if isinstance(event, dict) else {}
        kind, kickoff_id, task_id = fields.get("kind"), fields.get("kickoff_id"), fields.get("crew_task_id")
        if kind not in KINDS or not isinstance(kickoff_id, str) or not isinstance(task_id, str | None):
            raise exceptions.CrewProtocolError(f"The trigger's event cannot be read: {str(event)[:200]}")
        usage, error = (each if isinstance(each := fields.get(name), dict) else None for name in ("usage", "error"))
        return cls(kind, kickoff_id, str(fields.get("message") or ""), task_id, usage, error)


def fate_of_stop(kickoff_id: str, stopped: bool | exceptions.CrewError | None, after: Reply | None = None) -> str:
    """Return the fate of an execution as a sentence, given the result of a stop (None if none was requested).

    :param after: the reply to a poll after a refused stop, if there was one
    """
    if stopped is None:
        return f"Execution {kickoff_id} was not stopped and may still be active"
    if isinstance(stopped, exceptions.CrewError):
        return f"Execution {kickoff_id} could not be stopped ({stopped}) and may still be active"
    if stopped:
        return f"Execution {kickoff_id} was stopped"
    state = after.state if isinstance(after, Execution) and after.state_is_known else None
    if state in OVER:
        return f"Execution {kickoff_id} has ended"
    is_active = state in (ExecutionState.RUNNING, ExecutionState.PENDING)
    known = "so it keeps running" if is_active else "or it has already ended"
    return f"Execution {kickoff_id} could not be stopped: the service refused or does not support stopping, {known}"


# --- the watch ---


def is_transient(error: exceptions.CrewError) -> bool:
    """Return whether a later request may succeed."""
    if isinstance(error, exceptions.CrewConnectionError):
        return not error.permanent
    if isinstance(error, exceptions.CrewApiError) and error.status_code in (408, 425):
        return True
    return isinstance(
        error,
        exceptions.CrewServerError
        | exceptions.CrewRateLimited
        | exceptions.CrewProtocolError
        | exceptions.CrewOutcomeUnknown,
    )


# For this many seconds after an answer, a status with the answered draft shows the old pause, not a new question.
OLD_PAUSE_SHOWS = 60.0


@dataclass(frozen=True)
class AnsweredDraft:
    """An answered draft, which the service may still show as waiting for a while.

    :param until: the end of this period, in epoch seconds
    """

    draft: DraftId
    until: float

    def is_shown_by(self, execution: Execution, *, now: float) -> bool:
        """Return whether an execution still shows the answered draft rather than a new question."""
        return now < self.until and self.draft.waits_in(execution)


FORGIVEN = 300.0
LEAST_FAILURES = 5
GRACE_FOR_UNKNOWN_ID = 300.0
LONGEST_RETRY_AFTER = 300.0
NOW_AND_THEN = 600.0  # seconds between lookups of the connection during a wait
SHORTEST = 0.05
SHORTEST_POLL = 5.0
SHARE_OF_TIME_WAITED = 0.02
SLOWEST = 6  # the longest pause, in poll intervals
JITTER = 0.2
RESULTS_WITHIN = 5.0  # seconds; the next poll waits for the results
SEEN_BEFORE = ("known", "failing_since", "failures", "polls")  # the progress that another process needs
LEARNED = ("started", "deadline", *SEEN_BEFORE, "ended")
EARLIER_NAMES = {"looks": "polls"}  # names that release 0.1 stored


@dataclass(kw_only=True)
class Watch:
    """The policy of a wait for one execution: when to poll, and what ends it. It has a progress and a narrator.

    :param started: when the wait began, in epoch seconds; kept across restarts
    :param deadline: when the wait ends, in epoch seconds; None for no deadline
    :param poll_interval: the minimum pause between polls, in seconds; at least `SHORTEST`
    :param wait_past_pending: whether to treat an execution that is waiting for a person as in progress
    :param ends_at_unknown: with `wait_past_pending`, whether a question about a tool call's unknown outcome still ends
        the wait
    :param report_seen: whether to also end the wait when the id becomes known, which a continued wait must remember
    :param answered: the draft that a resume has just answered, which is not a new question
    :param exponential_backoff: double the pause after each poll instead of adapting it
    :param max_wait: the maximum pause with `exponential_backoff`, in seconds
    :param budget: the limits at which the wait ends
    """

    kickoff_id: str
    started: float
    deadline: float | None = None
    poll_interval: float = 10.0
    wait_past_pending: bool = False
    ends_at_unknown: bool = False
    report_seen: bool = False
    answered: AnsweredDraft | None = None
    exponential_backoff: bool = False
    max_wait: float | None = None
    budget: Budget = NO_BUDGET
    progress: Progress = field(default_factory=Progress)
    narrator: Narrator = field(default_factory=Narrator)

    def __post_init__(self) -> None:
        # Not max(), which could return NaN.
        self.poll_interval = self.poll_interval if self.poll_interval >= SHORTEST else SHORTEST

    def learned(self) -> Json:
        """Return the state that a wait needs to continue in another process, as plain JSON."""
        fields = {name: getattr(self.progress, name) for name in SEEN_BEFORE}
        ended = {"ended": self.narrator.ended} if self.narrator.ended else {}
        return {"started": self.started, "deadline": self.deadline, **fields, **ended}

    def recall(self, learned: Json) -> None:
        """Restore the state that `learned` returned, in this release or an earlier one."""
        for name, value in learned.items():
            name = EARLIER_NAMES.get(name, name)
            if name in SEEN_BEFORE:
                setattr(self.progress, name, value)
            elif name in ("started", "deadline"):
                setattr(self, name, value)
        self.narrator.ended = learned.get("ended", self.narrator.ended)

    def saw(self, execution: Execution, *, now: float) -> Outcome | None:
        """Record a successful poll."""
        self.progress.forgive()
        self.progress.polls += 1
        if execution.state is ExecutionState.NOT_FOUND:  # on live deployments, also while waiting for a person
            return self._over_budget(execution) or self._unknown(now)
        self.progress.known, self.progress.last = True, execution
        if execution.state is ExecutionState.COMPLETED:
            return self._outcome(COMPLETED)
        if execution.has_failed:
            return self._outcome(FAILED, execution.error or "", figures(execution.usage))
        if over := self._over_budget(execution):
            return over
        if execution.crew_task_id and self._asks(execution, now):
            return Outcome(PENDING, self.kickoff_id, crew_task_id=execution.crew_task_id)
        return self._past_deadline(now)

    def repeats(self, execution: Reply, *, now: float) -> bool:
        """Return whether a poll shows the same as the last logged one, and nothing else is due."""
        return (
            self.narrator.has_told(execution, now=now)
            and self.answered is None
            and (self.deadline is None or now < self.deadline)
            and not self.is_look_up_due(now=now)
        )

    def goes_on_after(self, execution: Execution, *, now: float) -> bool:
        """Return whether a poll shows nothing that could end the wait."""
        if execution is self.progress.last and self.answered is None:
            return True
        state = execution.state
        is_open = state is ExecutionState.RUNNING or (
            state is ExecutionState.PENDING and not self._asks(execution, now)
        )
        return is_open and self._over_budget(execution) is None

    def could_end_after(self, execution: Execution, *, now: float) -> bool:
        """Return whether the wait could end with this poll."""
        return not self.goes_on_after(execution, now=now) or self._past_deadline(now) is not None

    def is_look_up_due(self, *, now: float) -> bool:
        """Return whether to look up the connection of a continuing wait."""
        return now - max(self.progress.looked_up, self.started) >= NOW_AND_THEN

    def _over_budget(self, execution: Execution) -> Outcome | None:
        passed = self.budget.passed_by(execution.usage)
        return self._outcome(OVER_BUDGET, usage=figures(execution.usage)) if passed else None

    def _asks(self, execution: Execution, now: float) -> bool:
        """Return whether an execution has a question that ends the wait and has not been answered yet."""
        if execution.state is not ExecutionState.PENDING:
            return False
        if self.wait_past_pending and not (self.ends_at_unknown and question_of(execution).unattended):
            return False
        return self.answered is None or not self.answered.is_shown_by(execution, now=now)

    def failed(self, error: exceptions.CrewError, *, now: float) -> Outcome | None:
        """Record a failed poll."""
        progress = self.progress
        progress.polls += 1
        if isinstance(error, exceptions.CrewNotFound):
            progress.forgive()
            return self._unknown(now, error)
        if not is_transient(error) and not progress.may_be_renewed(error):
            return self._gave_up(f"{error}. {progress.fate(self.kickoff_id)}", error)
        is_forgiven = self.forgives_one_more(now=now)
        progress.fail(error, now)
        if not is_forgiven:
            return self._gave_up(
                f"{progress.failing(now)}, the last time: {error}. {progress.fate(self.kickoff_id)}", error
            )
        return self._past_deadline(now, error)

    def forgives_one_more(self, *, now: float) -> bool:
        """Return whether the wait tolerates one more transient failure."""
        since = now if self.progress.failing_since is None else self.progress.failing_since
        return now - since <= FORGIVEN or self.progress.failures + 1 < LEAST_FAILURES

    def pause(self, *, now: float, draw: float | None = None) -> float:
        """Return the seconds until the next poll, never past the deadline; ``draw`` is a random number in [0, 1)."""
        draw = random.random() if draw is None else draw  # noqa: S311 - jitter, not a secret
        progress, slowest = self.progress, self.longest_pause
        if progress.retry_after is not None:
            wanted = self.asked_pause
            slowest = max(slowest, LONGEST_RETRY_AFTER)
        elif progress.failures:
            wanted = self.poll_interval * 2 ** min(progress.failures - 1, 10)
        elif self.exponential_backoff:
            wanted = self.poll_interval * 2 ** min(max(progress.polls - 1, 0), 20)
            slowest = self.max_wait if self.max_wait is not None else float(2**20)
        else:
            wanted = SHARE_OF_TIME_WAITED * (now - self.started)
        slowest = max(slowest, self.poll_interval)
        wanted = min(max(wanted, self.poll_interval), slowest)
        if progress.retry_after is None:
            # Drawn from between the limits instead of clipped to them, so that waits that began together drift apart.
            least, most = max(wanted * (1 - JITTER), self.poll_interval), min(wanted * (1 + JITTER), slowest)
            wanted = least + (most - least) * draw
        return wanted if self.deadline is None else max(0.0, min(wanted, self.deadline - now))

    @property
    def asked_pause(self) -> float:
        """The pause that the service asked for in its last response, in seconds; 0 if for none."""
        return min(self.progress.retry_after or 0.0, LONGEST_RETRY_AFTER)

    @property
    def longest_pause(self) -> float:
        """The longest pause between polls of a wait without trouble, in seconds."""
        return SLOWEST * self.poll_interval

    @property
    def passes_question(self) -> bool:
        """Whether the execution is waiting for a person and this wait continues anyway."""
        last = self.progress.last
        return self.wait_past_pending and last is not None and last.state is ExecutionState.PENDING

    def left(self, *, now: float) -> float | None:
        """Return the timeout of a poll in seconds: the time until the deadline, with a minimum for the last poll."""
        return None if self.deadline is None else max(SHORTEST_POLL, self.deadline - now)

    def _unknown(self, now: float, error: exceptions.CrewNotFound | None = None) -> Outcome | None:
        self.progress.is_not_found = True
        if not self.progress.known and now - self.started > GRACE_FOR_UNKNOWN_ID:
            message = (
                f"The service does not know this id: {self.kickoff_id}, {GRACE_FOR_UNKNOWN_ID:.0f} s after the wait "
                "began. Check the id, and whether the crew was started through the same connection"
            )
            return self._gave_up(message, error)
        return self._past_deadline(now)

    def _past_deadline(self, now: float, error: exceptions.CrewError | None = None) -> Outcome | None:
        if self.deadline is None or now < self.deadline:
            return None
        unseen = f"; the last status request failed: {error}" if error else ""
        last_seen = self.progress.last_seen(self.kickoff_id)
        ending = f". {last_seen}" if last_seen else ""  # without its fate, because the caller may stop it
        return self._outcome(TIMEOUT, f"The wait timed out after {duration(now - self.started)}{unseen}{ending}")

    def _gave_up(self, message: str, error: exceptions.CrewError | None) -> Outcome:
        return Outcome(GAVE_UP, self.kickoff_id, message, error=exceptions.to_json(error) if error else None)

    def _outcome(self, kind: str, message: str = "", usage: Json | None = None) -> Outcome:
        return Outcome(kind, self.kickoff_id, message, usage=usage)


# --- the loop ---


@dataclass(frozen=True)
class StatusRequest:
    """One status request with a timeout in seconds; the reply is an `Execution` or a `CrewError`."""

    timeout: float | None


@dataclass(frozen=True)
class Sleep:
    """A pause in seconds."""

    seconds: float


@dataclass(frozen=True)
class Refresh:
    """A new lookup of the connection; the reply is whether it has changed, or a `CrewError`.

    :param at_once: False if a lookup within the last minute is recent enough
    """

    at_once: bool


@dataclass(frozen=True)
class Results:
    """A request for the finished tasks; the reply is a list of `TaskResult`, or a `CrewError`."""

    timeout: float


Step = StatusRequest | Sleep | Refresh | Results


def steps(watch: Watch, clock: Callable[[], float], say: Callable[[str], None]) -> Generator[Step, Any, Outcome]:
    """Yield each step of a wait, receive its result, and return how the wait ended."""
    while True:
        was_known = watch.progress.known
        reply = yield StatusRequest(watch.left(now=clock()))
        now = clock()
        if watch.repeats(reply, now=now):
            watch.progress.polls += 1
            yield Sleep(watch.pause(now=now))
            continue
        refresh = _refresh_after(reply, watch, now)
        if refresh is not None:
            watch.progress.looked_up = clock()
            fresh = yield refresh
            if fresh is True:
                reply = yield StatusRequest(watch.left(now=clock()))
            elif isinstance(fresh, exceptions.CrewError) and refresh.at_once and _is_failure(reply):
                reply = fresh
        now = clock()
        outcome = watch.saw(reply, now=now) if isinstance(reply, Execution) else watch.failed(reply, now=now)
        if isinstance(reply, Execution):
            results: Sequence[TaskResult] = reply.tasks
            goes_on = outcome is None or outcome.kind == PENDING
            if goes_on and reply.has_details and watch.narrator.has_ended_tasks(reply):
                reply_to_results = yield Results(RESULTS_WITHIN)
                results = [] if isinstance(reply_to_results, exceptions.CrewError) else reply_to_results
            for sentence in watch.narrator.ended_tasks(watch.kickoff_id, reply, results, now=now):
                say(sentence)
        if outcome is not None:
            return outcome
        line = watch.narrator.news(watch, now=now)
        if line:
            say(line)
        if watch.report_seen and watch.progress.known and not was_known:
            return Outcome(SEEN, watch.kickoff_id)
        yield Sleep(watch.pause(now=now))


def _refresh_after(reply: Reply, watch: Watch, now: float) -> Refresh | None:
    """Return the lookup to do after a reply, if any: the connection may have a new token or base URL by now."""
    if isinstance(reply, Execution):
        if watch.could_end_after(reply, now=now):
            return Refresh(at_once=True)
        return Refresh(at_once=False) if watch.is_look_up_due(now=now) else None
    return Refresh(at_once=not (is_transient(reply) and watch.forgives_one_more(now=now)))


def _is_failure(reply: Reply) -> bool:
    return isinstance(reply, exceptions.CrewError) and not isinstance(reply, exceptions.CrewNotFound)
