"""The people who may answer a review, the deadlines, and the escalation if nobody answers. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from airflow_crew_provider.api.asks import APPROVE, DENY
from airflow_crew_provider.models import Json, shown

REVISE = "revise"
LONGEST = timedelta(days=36_500)  # the current date plus this must still be a valid date


def deadline_policy(on_timeout: Any, response_timeout: Any) -> Any:
    """Check the policy for an unanswered question; approval is never the default."""
    if isinstance(on_timeout, dict):
        text = on_timeout.get("revise")
        if set(on_timeout) != {"revise"} or not isinstance(text, str) or not text.strip():
            raise ValueError('on_timeout as a dict must be {"revise": "what to change"}')
    elif on_timeout not in ("fail", "approve"):
        raise ValueError(
            f'on_timeout must be "fail", {{"revise": "what to change"}} or "approve", not {shown(on_timeout)}'
        )
    if on_timeout != "fail" and response_timeout is None:
        raise ValueError("on_timeout needs a response_timeout: without one there is no deadline")
    return on_timeout


def tool_policy(on_tool_timeout: Any, response_timeout: Any) -> str:
    """Check the policy for an unanswered tool call."""
    if on_tool_timeout not in (DENY, "fail", APPROVE):
        raise ValueError(f"on_tool_timeout must be 'deny', 'fail' or 'approve', not {shown(on_tool_timeout)}")
    if on_tool_timeout == APPROVE and response_timeout is None:
        raise ValueError("on_tool_timeout='approve' needs a response_timeout: without one there is no deadline")
    return str(on_tool_timeout)


def response_time(value: Any, name: str = "response_timeout") -> timedelta | None:
    """Read a person's time limit: a timedelta, or a number of seconds, possibly as a string."""
    if value is None:
        return None
    try:
        duration = value if isinstance(value, timedelta) else timedelta(seconds=float(value))
    except (TypeError, ValueError, OverflowError):
        duration = timedelta(0)
    if duration <= timedelta(0) or isinstance(value, bool):
        raise ValueError(f"{name} must be a timedelta or a number of seconds above 0, not {shown(value)}")
    if duration > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST.days:,} days, not {shown(value)}; leave it out for no limit")
    return duration


def deadline_after(response_timeout: timedelta | None, expires: datetime | None = None) -> str | None:
    """Return the time until which a question asked now waits, in ISO 8601; None for no deadline.

    :param expires: when the service gives nobody's answer by itself
    """
    end = datetime.now(UTC) + response_timeout if response_timeout else None
    ends = [each for each in (end, expires) if each]
    return min(ends).isoformat() if ends else None


def needed_approvals(given: Any, users: Sequence[Json] | None, *, allow_edit: bool) -> int:
    """Check how many people must approve."""
    approvals = count(given, "approvals")
    if users is not None and len({user["id"] for user in users}) < approvals:
        raise ValueError(f"{approvals} approvals need at least as many different users; name more in assigned_users")
    if not isinstance(allow_edit, bool):
        raise ValueError(f"allow_edit must be True or False, not {shown(allow_edit)}")
    if approvals > 1 and allow_edit:
        raise ValueError("allow_edit supports only one approval: a second person would not see the edited draft")
    return approvals


def counted(value: Any, name: str) -> int | None:
    """Check the number of a round, or of all rounds; None if it is not given."""
    return None if value is None else count(value, name)


def count(value: Any, name: str) -> int:
    """Check a number of people or questions."""
    if type(value) is int and value >= 1:
        return value
    raise ValueError(f"{name} must be an integer >= 1, not {shown(value)}")


def reviewers(value: Any) -> list[Json] | None:
    """Read the assigned users: one or several, each an id or a dict with an ``id`` and an optional ``name``.

    An empty list is an error, because to Airflow it means everybody.
    """
    if value is None:
        return None
    several = [value] if isinstance(value, str | Mapping) else value
    try:
        read = [_reviewer(each) for each in several]
    except TypeError:
        raise ValueError(f"assigned_users must be user ids, or dicts with id and name, not {shown(value)}") from None
    if not read:
        raise ValueError("assigned_users names nobody; leave it out to let anyone answer")
    return read


def _reviewer(value: Any) -> Json:
    known = dict(value) if isinstance(value, Mapping) else {"id": value}
    user = {"id": known.get("id"), "name": known.get("name") or known.get("id")}
    texts = {name: each.strip() for name, each in user.items() if isinstance(each, str)}
    if set(known) - set(user) or len(texts) < len(user) or not all(texts.values()):
        raise TypeError(value)
    return texts


def two_words(options: Sequence[str]) -> list[str]:
    """Check the labels of a draft's two choices."""
    are_several = isinstance(options, Sequence) and not isinstance(options, str)
    are_words = are_several and all(isinstance(each, str) and each for each in options)
    if not are_words or len(options) != 2 or options[0] == options[1]:
        raise ValueError("options must be two different words: one to approve, one to revise")
    return list(options)


def refuse_foreign(kwargs: Json) -> None:
    """Refuse arguments of `HITLOperator` that could cause an accidental approval."""
    if kwargs.pop("defaults", None):
        raise ValueError("defaults cannot be given: use on_timeout to set what happens at the deadline")
    refuse_several_choices(kwargs)


def refuse_several_choices(kwargs: Json) -> None:
    """Refuse an argument of `HITLOperator` with which an answer could make several choices at once."""
    if kwargs.pop("multiple", None):
        raise ValueError("multiple is not supported: a person makes one choice")


@dataclass(frozen=True)
class EscalationStep:
    """The users and notifiers to involve if nobody has answered for a while."""

    after: timedelta
    users: list[Json]
    notifiers: list[Any]
    number: int = 1  # among steps with the same time, users and notifier classes

    @property
    def name(self) -> str:
        """The name that identifies the step while the task waits, even if an edited DAG inserts a step before it."""
        return self.kind if self.number == 1 else f"{self.kind} #{self.number}"

    @property
    def kind(self) -> str:
        """The step's time, users and notifier classes, which another step may share."""
        return " ".join([f"{self.after.total_seconds():g}", *sorted(_ids(self)), *(_kind(n) for n in self.notifiers)])


@dataclass(frozen=True)
class Escalation:
    """The steps of one review in order, and the users who may answer from the start."""

    steps: list[EscalationStep]
    assigned: list[Json] | None

    @classmethod
    def of(cls, value: Any, assigned: list[Json] | None, response_timeout: timedelta | None) -> Escalation:
        """Read pairs of a time and users or notifiers; refuse impossible steps."""
        given = value or ()
        if not isinstance(given, Iterable):
            refuse_step(value)
        steps = sorted((_step(each) for each in given), key=lambda step: step.after)
        if assigned is None and any(step.users for step in steps):
            raise ValueError("escalate names users, but everybody may answer: set assigned_users too")
        if response_timeout and any(step.after >= response_timeout for step in steps):
            raise ValueError("escalate has a step at or after response_timeout, when the question has already expired")
        return cls(list(_numbered(steps)), assigned)

    @property
    def users(self) -> list[Json] | None:
        """Everybody who may answer at some point, each once; None if anybody may."""
        if self.assigned is None:
            return None
        later = (user for step in self.steps for user in step.users)
        return list({user["id"]: user for user in (*later, *self.assigned)}.values())

    @property
    def ids(self) -> list[str] | None:
        """The ids of `users`."""
        return None if self.users is None else sorted(user["id"] for user in self.users)

    def due(self, since: datetime, now: datetime) -> Iterator[tuple[int, EscalationStep]]:
        """Yield the steps that are due, numbered from 1."""
        yield from ((number, step) for number, step in enumerate(self.steps, 1) if since + step.after <= now)

    def next_after(self, since: datetime, now: datetime) -> datetime | None:
        """Return when the next step is due; None if no steps remain."""
        return min((since + step.after for step in self.steps if since + step.after > now), default=None)

    @property
    def may_answer(self) -> Json | None:
        """The ids of all users who may answer, with the seconds until they may; None if no step names users."""
        if not any(step.users for step in self.steps):
            return None
        later = {each: step.after.total_seconds() for step in reversed(self.steps) for each in sorted(_ids(step))}
        return {**later, **{user["id"]: 0.0 for user in self.assigned or ()}}


def told(may_answer: Json | None, since: datetime) -> list[str]:
    """Return the form's sentences about users who may answer later."""
    later: dict[float, list[str]] = {}
    for who, seconds in sorted((may_answer or {}).items()):
        later.setdefault(seconds, []).append(who)
    at = [(since + timedelta(seconds=each), later[each]) for each in sorted(later) if each]
    return [f"From {when:%Y-%m-%d %H:%M} UTC on, {', '.join(ids)} may also answer." for when, ids in at]


def _ids(step: EscalationStep) -> set[str]:
    return {user["id"] for user in step.users}


def _numbered(steps: Iterable[EscalationStep]) -> Iterator[EscalationStep]:
    """Give each step its own name; the first of its kind keeps the name that earlier releases recorded."""
    counts: Counter[str] = Counter()
    for step in steps:
        counts[step.kind] += 1
        yield replace(step, number=counts[step.kind])


def _kind(notifier: Any) -> str:
    return getattr(notifier, "__name__", None) or type(notifier).__name__


def refuse_step(value: Any) -> NoReturn:
    """Refuse a value that is no step, or no list of steps."""
    raise ValueError(f"escalate must be a list of pairs of a time and users or notifiers, not {shown(value)}")


def _step(value: Any) -> EscalationStep:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        refuse_step(value)
    after, who = value
    is_one = callable(who) or isinstance(who, str) or not isinstance(who, Collection | None)
    several = [who] if is_one or isinstance(who, Mapping) else list(who or ())
    notifiers = [each for each in several if callable(each)]
    if not several:
        raise ValueError("each escalate step needs a user or a notifier")
    named = [each for each in several if not callable(each)]
    users = reviewers(named or None) or []
    time = response_time(after or 0, "A time in escalate")
    assert time
    return EscalationStep(time, users, notifiers)
