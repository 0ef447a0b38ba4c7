"""Who may answer a review, for how long, and what happens at the deadline: arguments read and checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_crew_provider.models import Json

LONGEST = timedelta(days=36_500)  # what is added to a date must be one


def deadline_policy(on_timeout: Any, response_timeout: Any) -> Any:
    """Check what happens when nobody answers; an approval is never the default."""
    if isinstance(on_timeout, dict):
        text = on_timeout.get("revise")
        if set(on_timeout) != {"revise"} or not isinstance(text, str) or not text.strip():
            raise ValueError('on_timeout as a dict is {"revise": "what to change"}')
    elif on_timeout not in ("fail", "approve"):
        raise ValueError(f'on_timeout is "fail", {{"revise": "what to change"}} or "approve", not {on_timeout!r}')
    if on_timeout != "fail" and response_timeout is None:
        raise ValueError("on_timeout needs a response_timeout: without one there is no deadline")
    return on_timeout


def response_time(value: Any, name: str = "response_timeout") -> timedelta | None:
    """Read how long a person may take: a timedelta, or a number of seconds, also as a text."""
    if value is None:
        return None
    try:
        given = value if isinstance(value, timedelta) else timedelta(seconds=float(_no_bool(value)))
    except (TypeError, ValueError, OverflowError):
        given = timedelta(0)
    if given <= timedelta(0):
        raise ValueError(f"{name} is a timedelta or a number of seconds above 0, not {value!r}")
    if given > LONGEST:
        raise ValueError(f"{name} is {LONGEST.days:,} days at most, not {value!r}; leave it out for no end")
    return given


def deadline_after(response_timeout: timedelta | None) -> str | None:
    """Return the point in time at which a question that is asked now ends, ISO 8601; None for no end."""
    return (datetime.now(UTC) + response_timeout).isoformat() if response_timeout else None


def needed_approvals(approvals: Any, users: Sequence[Json] | None, *, allow_edit: bool) -> int:
    """Check how many people must approve."""
    if type(approvals) is not int or approvals < 1:
        raise ValueError(f"approvals is a whole number of people from 1, not {approvals!r}")
    if users is not None and len({user["id"] for user in users}) < approvals:
        raise ValueError(f"{approvals} approvals need that many different users; name more in assigned_users")
    if not isinstance(allow_edit, bool):
        raise ValueError(f"allow_edit is True or False, not {allow_edit!r}")
    if approvals > 1 and allow_edit:
        raise ValueError("allow_edit goes with one approval: a second person would not see the edited draft")
    return approvals


def counted(value: Any, name: str) -> int | None:
    """Check a number of rounds; None where it is not given."""
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{name} is a whole number from 1, not {value!r}")
    return value


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError("a bool is no number of seconds")
    return value


def reviewers(given: Any) -> list[Json] | None:
    """Read who may answer: one user or several, each an id or a dict with ``id`` and perhaps ``name``."""
    if given is None:
        return None
    several = [given] if isinstance(given, str | Mapping) else given
    try:
        return [_reviewer(each) for each in several]
    except TypeError:
        raise ValueError(f"assigned_users are ids of users, or dicts with id and name, not {given!r}") from None


def _reviewer(given: Any) -> Json:
    known = dict(given) if isinstance(given, Mapping) else {"id": given}
    user = {"id": known.get("id"), "name": known.get("name") or known.get("id")}
    texts = {name: each.strip() for name, each in user.items() if isinstance(each, str)}
    if set(known) - set(user) or len(texts) < len(user) or not all(texts.values()):
        raise TypeError(given)
    return texts


def refuse_foreign(options: Sequence[str], kwargs: Json) -> None:
    """Refuse what would approve by accident."""
    if len(options) != 2 or options[0] == options[1]:
        raise ValueError("options are two different words: to approve, and to revise")
    for name in ("defaults", "multiple"):
        if kwargs.pop(name, None):
            raise ValueError(f"{name} cannot be given: say with on_timeout what happens at the deadline")
