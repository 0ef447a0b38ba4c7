"""Who is told of a review that nobody has answered, when, and who may answer it from then on. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_crew_provider.core.review_policy import response_time, reviewers
from airflow_crew_provider.models import Json


@dataclass(frozen=True)
class EscalationStep:
    """What happens when nobody has answered for a while."""

    after: timedelta
    users: list[Json]
    notifiers: list[Any]
    number: int = 1  # among the steps of this time, these users and notifiers of these classes

    @property
    def name(self) -> str:
        """What the step is known by while it waits: a DAG that is edited meanwhile may have another step before it."""
        return self.kind if self.number == 1 else f"{self.kind} #{self.number}"

    @property
    def kind(self) -> str:
        """The step's time, users and classes of notifiers, which another step may share."""
        return " ".join([f"{self.after.total_seconds():g}", *sorted(_ids(self)), *(_kind(n) for n in self.notifiers)])


@dataclass(frozen=True)
class Escalation:
    """The steps of one review, the first one first, and who may answer without any."""

    steps: list[EscalationStep]
    assigned: list[Json] | None

    @classmethod
    def of(cls, given: Any, assigned: list[Json] | None, response_timeout: timedelta | None) -> Escalation:
        """Read pairs of a time and users or notifiers; refuse what could never happen."""
        steps = sorted((_step(each) for each in given or ()), key=lambda step: step.after)
        if assigned is None and any(step.users for step in steps):
            raise ValueError("escalate names users, but everybody may answer: say in assigned_users who may at first")
        if response_timeout and any(step.after >= response_timeout for step in steps):
            raise ValueError("escalate has a step at or after response_timeout, when nobody is asked any more")
        return cls(list(_numbered(steps)), assigned)

    @property
    def users(self) -> list[Json] | None:
        """Everybody who may answer sooner or later, each once; None for anybody."""
        if self.assigned is None:
            return None
        later = (user for step in self.steps for user in step.users)
        return list({user["id"]: user for user in (*later, *self.assigned)}.values())

    def due(self, since: datetime, now: datetime) -> Iterator[tuple[int, EscalationStep]]:
        """Yield the steps whose time has come, with their numbers from 1."""
        yield from ((number, step) for number, step in enumerate(self.steps, 1) if since + step.after <= now)

    def next_after(self, since: datetime, now: datetime) -> datetime | None:
        """Return when the next step comes."""
        return min((since + step.after for step in self.steps if since + step.after > now), default=None)

    def waits_for(self, user: Json | None, since: datetime) -> datetime | None:
        """Return from when on somebody may answer; None for those who may from the start."""
        at_first = {each["id"] for each in self.assigned or ()}
        if user is None or user.get("id") in at_first:
            return None
        return next((since + step.after for step in self.steps if user.get("id") in _ids(step)), None)

    def told(self, since: datetime) -> list[str]:
        """Return the sentences of the form about those who may answer later."""
        at = [(since + step.after, sorted(_ids(step))) for step in self.steps if step.users]
        return [f"From {when:%Y-%m-%d %H:%M} UTC on, {', '.join(ids)} may answer too." for when, ids in at]


def _ids(step: EscalationStep) -> set[str]:
    return {user["id"] for user in step.users}


def _numbered(steps: Iterable[EscalationStep]) -> Iterator[EscalationStep]:
    """Give each step a name of its own; the first of its kind keeps the one that earlier releases have recorded."""
    seen: Counter[str] = Counter()
    for step in steps:
        seen[step.kind] += 1
        yield replace(step, number=seen[step.kind])


def _kind(notifier: Any) -> str:
    return getattr(notifier, "__name__", None) or type(notifier).__name__


def _step(given: Any) -> EscalationStep:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise ValueError(f"escalate is a list of pairs, a time and users or notifiers, not {given!r}")
    after, who = given
    several = [who] if isinstance(who, str | Mapping) or callable(who) else list(who)
    notifiers = [each for each in several if callable(each)]
    users = reviewers([each for each in several if not callable(each)]) or []
    if not several:
        raise ValueError("A step of escalate has nobody to tell")
    time = response_time(after or 0, "A time of escalate")
    assert time
    return EscalationStep(time, users, notifiers)
