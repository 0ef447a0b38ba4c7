"""Budgets: what the service, a crew or an owner may use in an hour, a day or a month (UTC).

A budget is judged when an execution is started, and again in the transaction that claims its first segment; until the
budget begins anew, it stays in the queue. What has begun goes on. The usage of a segment is booked in the transaction
that stores it, so that when a place becomes free, all that its execution used is known. Therefore, at most the budget
is used up, and what the executions use that occupy a place at that moment: one for each place, in all services, which
need not wait for each other for that. Executions that had begun before and waited for a person come on top.

Everything is judged by the sums in the database and the given time: a restart forgets nothing, and a clock that is set
back only selects an earlier window.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.sql import ColumnElement

from crew_service.budgets import TOKENS, USD, Budget, Owner, Window
from crew_service.engine.decisions import Refused
from crew_service.engine.ledger import Ledger
from crew_service.storage import holds, usage_sums
from crew_service.storage.owners import is_of, owner_of
from crew_service.storage.tables import usage_sums as sums
from crew_service.times import iso

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Standing:
    """What has been used of a budget in its present window.

    :param unpriced: models with a usage whose price is unknown, if that counts
    """

    budget: Budget
    window: Window
    used: float
    unpriced: tuple[str, ...] = ()

    @property
    def is_used_up(self) -> bool:
        return self.used >= self.budget.amount or bool(self.unpriced)

    def as_dict(self) -> dict[str, Any]:
        return {
            "who": self.budget.who,
            "amount": _figure(self.budget.amount, self.budget.unit),
            "unit": self.budget.unit,
            "window": self.budget.window,
            "used": _figure(self.used, self.budget.unit),
            "since": iso(self.window.since),
            "until": iso(self.window.until),
        }

    def sentence(self, *, with_figures: bool) -> str:
        """Say that it is used up, and until when; figures are for those whose budget it is."""
        budget, until = self.budget, iso(self.window.until)
        if self.unpriced:
            models = ", ".join(model or "a model without a name" for model in self.unpriced)
            return (
                f"The budget of {budget.named} cannot be judged until {until}, because the price of {models} is "
                "unknown; set it with --prices, or ignore it with --on-unknown-price allow."
            )
        figures = f" ({budget.shown(self.used)} of {budget.shown(budget.amount)})" if with_figures else ""
        return f"The {budget.window}'s budget of {budget.named} is used up until {until}{figures}."

    def body(self, *, with_figures: bool) -> dict[str, Any]:
        """Return the data of a refusal."""
        whole = self.as_dict()
        names = ("who", "window", "until", *(("used", "amount", "unit") if with_figures else ()))
        return {name: whole[name] for name in names}


class OverBudget(Refused):
    """A budget is used up, so nothing was started, or changed."""

    def __init__(self, standing: Standing, now: float) -> None:
        super().__init__(standing.sentence(with_figures=False))
        self.fate = "Nothing was started."
        self.standing = standing
        self.retry_after = max(1, math.ceil(standing.window.until - now))


class Budgets:
    """The budgets of a service.

    :param refuses_unknown: whether a budget in USD is used up by usage whose price is unknown
    :param stops: whether a budget that is used up also ends what is running
    """

    def __init__(
        self,
        budgets: Collection[Budget] = (),
        ledger: Ledger | None = None,
        *,
        refuses_unknown: bool = True,
        stops: bool = False,
    ) -> None:
        self.stops = stops and bool(budgets)
        self._budgets = tuple(budgets)
        self._ledger = ledger
        self._refuses_unknown = refuses_unknown

    def __bool__(self) -> bool:
        return bool(self._budgets)

    def standings(self, connection: Connection, *, now: float) -> list[Standing]:
        return [self._standing(connection, budget, now) for budget in self._budgets]

    def _standing(self, connection: Connection, budget: Budget, now: float) -> Standing:
        window = Window.at(budget.window, now)
        period = {"since": window.since, "until": window.until}
        used = usage_sums.used(connection, _counting(budget), **period)
        if budget.unit == TOKENS:
            return Standing(budget, window, float(used.total_tokens))
        unpriced: Iterable[str] = ()
        if used.unpriced > 0 and self._refuses_unknown:
            unpriced = usage_sums.unpriced_models(connection, _counting(budget), **period)
        return Standing(budget, window, float(used.cost_usd), tuple(unpriced))

    def check(self, connection: Connection, crew: str, owner: Owner, *, now: float) -> None:
        """:raises OverBudget: an execution may not start; of several reasons, the one that lasts longest"""
        over = self._used_up(connection, now, lambda budget: budget.concerns(crew, owner))
        if over:
            raise OverBudget(max(over, key=lambda standing: standing.window.until), now)

    def barred(self, connection: Connection, crew: str, *, now: float) -> Barred:
        """Return whose executions of a crew may not begin."""
        over = self._used_up(connection, now, lambda budget: budget.crew in (None, crew))
        return Barred(tuple(over))

    def _used_up(self, connection: Connection, now: float, concerned: Any) -> list[Standing]:
        """Judge in the caller's transaction, in which what earlier releases have stored is booked first."""
        if not self._budgets:
            return []
        if self._ledger:
            self._ledger.book_shared(connection)
        return [
            standing
            for standing in self.standings(connection, now=now)
            if standing.is_used_up and concerned(standing.budget)
        ]


def _counting(budget: Budget) -> list[ColumnElement[bool]]:
    """Return the conditions for the sums that count."""
    of_crew = [] if budget.crew is None else [sums.c.crew == budget.crew]
    return of_crew if budget.owner is None else [*of_crew, is_of(sums, budget.owner)]


@dataclass(frozen=True)
class Barred:
    """The budgets that are used up; see `holds` for their effect on the queue of one crew."""

    over: tuple[Standing, ...] = ()

    def of(self, owner: Owner) -> Standing | None:
        """Return the budget that bars an owner's executions longest."""
        mine = [each for each in self.over if each.budget.owner in (None, owner)]
        return max(mine, key=lambda each: each.window.until, default=None)

    @property
    def holds(self) -> holds.Holds:
        common = max((each.window.until for each in self.over if each.budget.owner is None), default=None)
        owners = {each.budget.owner for each in self.over if each.budget.owner is not None}
        return holds.Holds(common, {owner: self.of(owner).window.until for owner in owners})  # type: ignore[union-attr]


def hold(connection: Connection, crew: str, barred: Barred) -> None:
    """Mark the executions of a crew that stay in the queue, and log each that has just been marked or released."""
    for row in holds.mark(connection, crew, barred.holds):
        standing = barred.of(owner_of(row))
        text = "no longer held by a budget" if standing is None else f"held. {standing.sentence(with_figures=True)}"
        log.info("%s", text, extra={"execution_id": row.id})


def _figure(number: float, unit: str) -> float | int:
    return round(number, 10) if unit == USD else int(number)
