"""Owners and budgets as values: who may use how much in which window. How they are judged is in `engine.budgets`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

EVERYBODY, CREW, ORGANIZATION = "*", "crew:", "organization"
USD, TOKENS = "USD", "tokens"
REFUSE, ALLOW = "refuse", "allow"
FORM = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,6})?)(?P<unit>USD|tokens)/(?P<window>hour|day|month)")
EXAMPLE = "WHO=AMOUNT/WINDOW, such as *=20USD/day, crew:NAME=500000tokens/hour or alice=5USD/month"


class BadBudget(ValueError):
    """A budget cannot be used; the message gives the reason in one sentence."""


@dataclass(frozen=True)
class Window:
    since: float  # seconds since 1970
    until: float

    @classmethod
    def at(cls, kind: str, now: float) -> Window:
        """Return the hour, day or month of the UTC calendar that contains a time."""
        moment = datetime.fromtimestamp(now, timezone.utc).replace(minute=0, second=0, microsecond=0)
        if kind == "hour":
            return cls(moment.timestamp(), (moment + timedelta(hours=1)).timestamp())
        day = moment.replace(hour=0)
        if kind == "day":
            return cls(day.timestamp(), (day + timedelta(days=1)).timestamp())
        first = day.replace(day=1)
        return cls(first.timestamp(), (first + timedelta(days=31)).replace(day=1).timestamp())


class Owner(NamedTuple):
    """Whose an execution is. Crews can have tokens of their own, so a name alone does not identify a token's holder.

    :param has_crew_token: whether the token is one of the crew's own, so that only that crew knows the holder
    """

    user: str | None = None  # name of the token; None for the organization
    has_crew_token: bool = False


@dataclass(frozen=True)
class Budget:
    """:param who: `*` (the service), `crew:` and a crew's name, or an owner: the name of a user token, `organization`,
    or, with `crew:`, the crew's name and a slash before it, the holder of one of that crew's own tokens
    """

    who: str
    amount: float
    unit: str
    window: str

    @classmethod
    def read(cls, text: str) -> Budget:
        """:raises BadBudget: it cannot be parsed"""
        who, equals, rest = text.rpartition("=")
        match = FORM.fullmatch(rest)
        if not (who and equals and match):
            raise BadBudget(f"--budget {text}: expected {EXAMPLE}.")
        number = float(match["number"])
        if not number or (match["unit"] == TOKENS and not number.is_integer()):
            raise BadBudget(f"--budget {text}: the amount must be greater than 0, and tokens a whole number.")
        budget = cls(who, number, match["unit"], match["window"])
        if budget.crew == "" or (budget.owner and budget.owner.user == ""):
            raise BadBudget(f"--budget {text}: after {CREW}, a name is missing: {CREW}NAME or {CREW}NAME/USER.")
        return budget

    @property
    def crew(self) -> str | None:
        """The only crew whose executions count, if so."""
        return self.who.removeprefix(CREW).partition("/")[0] if self.who.startswith(CREW) else None

    @property
    def owner(self) -> Owner | None:
        """The only owner whose executions count, if so."""
        if self.who in (EVERYBODY, f"{CREW}{self.crew}"):
            return None
        name = self.who if self.crew is None else self.who.partition("/")[2]
        return Owner(None if name == ORGANIZATION else name, self.crew is not None)

    def concerns(self, crew: str, owner: Owner) -> bool:
        return self.crew in (None, crew) and self.owner in (None, owner)

    @property
    def named(self) -> str:
        owner = self.owner
        if owner is None:
            return "this service" if self.crew is None else f"the crew {self.crew}"
        name = "the organization" if owner.user is None else owner.user
        return name if self.crew is None else f"{name} of the crew {self.crew}"

    def shown(self, amount: float) -> str:
        return f"{amount:,.2f} USD" if self.unit == USD else f"{amount:,.0f} tokens"


def is_reserved(name: str) -> bool:
    """Return whether a user's name would be another WHO in a budget."""
    return name in (EVERYBODY, ORGANIZATION) or name.startswith(CREW)
