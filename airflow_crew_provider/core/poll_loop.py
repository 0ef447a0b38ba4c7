"""The loop of a wait as a generator of steps (poll, pause, refresh); worker and triggerer each perform them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from airflow_crew_provider.core.outcome import SEEN, Outcome
from airflow_crew_provider.core.polling import Watch
from airflow_crew_provider.exceptions import CrewError, CrewNotFound, CrewUnauthorized
from airflow_crew_provider.models import Execution, ExecutionState


@dataclass(frozen=True)
class Poll:
    """One status request with a timeout in seconds; the reply is an `Execution` or a `CrewError`."""

    timeout: float | None


@dataclass(frozen=True)
class Pause:
    """A pause in seconds."""

    seconds: float


@dataclass(frozen=True)
class Refresh:
    """A new look-up of the connection; the reply is whether it has changed, or a `CrewError`."""


Step = Poll | Pause | Refresh


def steps(watch: Watch, clock: Callable[[], float], say: Callable[[str], None]) -> Generator[Step, Any, Outcome]:
    """Yield each step of a wait, receive its result, and return how the wait ended."""
    while True:
        was_known = watch.known
        reply = yield Poll(watch.left(now=clock()))
        if isinstance(reply, CrewUnauthorized) or _is_not_found(reply):
            # The connection may have another token, or point to another service, by now.
            fresh = yield Refresh()
            if fresh is True:
                reply = yield Poll(watch.left(now=clock()))
            elif isinstance(fresh, CrewError) and not _is_not_found(reply):
                reply = fresh
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


def _is_not_found(reply: Execution | CrewError) -> bool:
    if isinstance(reply, Execution):
        return reply.state is ExecutionState.NOT_FOUND
    return isinstance(reply, CrewNotFound)
