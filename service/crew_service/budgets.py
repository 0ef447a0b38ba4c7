"""Budgets as values: who may use how much in which window. How they are judged is in `engine.budgets`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

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


@dataclass(frozen=True)
class Budget:
    """:param who: `*` (the service), `crew:` and a crew's name, or the owner of executions"""

    who: str
    amount: float
    unit: str
    window: str

    @classmethod
    def read(cls, text: str) -> Budget:
        """:raises BadBudget: it cannot be parsed"""
        who, equals, rest = text.rpartition("=")
        found = FORM.fullmatch(rest)
        if not (who and equals and found):
            raise BadBudget(f"--budget {text}: expected {EXAMPLE}.")
        number = float(found["number"])
        if not number or (found["unit"] == TOKENS and not number.is_integer()):
            raise BadBudget(f"--budget {text}: the amount must be greater than 0, and tokens a whole number.")
        if who == CREW:
            raise BadBudget(f"--budget {text}: after {CREW}, the name of a crew is missing.")
        return cls(who, number, found["unit"], found["window"])

    @property
    def owner(self) -> str | None:
        """The owner as stored, if the budget is an owner's."""
        return None if self.who == ORGANIZATION else self.who

    @property
    def is_of_owner(self) -> bool:
        return self.who != EVERYBODY and not self.who.startswith(CREW)

    @property
    def crew(self) -> str | None:
        return self.who.removeprefix(CREW) if self.who.startswith(CREW) else None

    def concerns(self, crew: str, owner: str | None) -> bool:
        return self.owner == owner if self.is_of_owner else self.crew in (None, crew)

    @property
    def named(self) -> str:
        if self.crew is not None:
            return f"the crew {self.crew}"
        return {EVERYBODY: "this service", ORGANIZATION: "the organization"}.get(self.who, self.who)

    def shown(self, amount: float) -> str:
        return f"{amount:,.2f} USD" if self.unit == USD else f"{amount:,.0f} tokens"


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_reserved(name: str) -> bool:
    """Return whether a user's name would be another WHO in a budget."""
    return name in (EVERYBODY, ORGANIZATION) or name.startswith(CREW)
