"""What was used, and what is left of the budgets, as far as a caller may know it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from itertools import combinations
from typing import Any

from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement

from crew_service.budgets import ORGANIZATION, Window
from crew_service.engine.budgets import Budgets, Standing
from crew_service.engine.principals import Principal
from crew_service.storage import usage_sums
from crew_service.storage.database import Database
from crew_service.storage.owners import is_of
from crew_service.storage.tables import usage_sums as sums

BY = ("day", "crew", "owner", "model")
GROUPS = [",".join(names) for number in range(1, len(BY) + 1) for names in combinations(BY, number)]
DAY = re.compile("[12][0-9]{3}-[0-9]{2}-[0-9]{2}")
MOST_ROWS = 10_000
MOST_DAYS = 400


class BadPeriod(ValueError):
    """A report's days or groups cannot be parsed; the message says what is expected."""


class TooMany(ValueError):
    """The report would have more rows than allowed."""


@dataclass(frozen=True)
class Reader:
    """Who reads, and through which crew. The organization of the service sees all, a crew's own sees the crew."""

    caller: Principal
    crew: str

    @property
    def wheres(self) -> list[ColumnElement[bool]]:
        of_crew = [sums.c.crew == self.crew] if self.caller.has_crew_token else []
        return of_crew if self.caller.user is None else [*of_crew, is_of(sums, self.caller)]

    def may_see_figures(self, standing: Standing) -> bool:
        """Return whether a budget is the reader's own."""
        budget, caller = standing.budget, self.caller
        is_of_crew = budget.crew == self.crew if caller.has_crew_token else True
        return is_of_crew and (caller.user is None or budget.owner == caller)


class UsageReport:
    def __init__(self, database: Database, budgets: Budgets, crew: str) -> None:
        self._database = database
        self._budgets = budgets
        self._crew = crew

    def period(
        self, first: str | None = None, last: str | None = None, by: str | None = None
    ) -> tuple[date, date, list[str]]:
        """Parse the first day, the last day and what to group by; by default, this month by day.

        :raises BadPeriod: one of them is not valid
        """
        month = Window.at("month", self._database.now())
        begin = _day(month.since) if first is None else _parsed("from", first)
        end = _day(month.until) - timedelta(days=1) if last is None else _parsed("to", last)
        if not 0 <= (end - begin).days < MOST_DAYS:
            raise BadPeriod(f"from must not be after to, nor more than {MOST_DAYS - 1} days before.")
        names = "day" if by is None else by
        if names not in GROUPS:
            raise BadPeriod(f"by must be some of {', '.join(BY)}, in this order.")
        return begin, end, names.split(",")

    def read(
        self, caller: Principal, first: date, last: date, by: Sequence[str], *, most: int | None = None
    ) -> dict[str, Any]:
        """Return the usage of these days, both included.

        :param by: some of `BY`, in that order
        :param most: of how many rows only
        :raises TooMany: there are more than `MOST_ROWS` rows
        """
        reader = Reader(caller, self._crew)
        since, until = _start(first), _start(last + timedelta(days=1))
        with self._database.reading() as connection:
            limit = most or MOST_ROWS + 1
            rows = usage_sums.grouped(
                connection,
                by,
                reader.wheres,
                since=since,
                until=until,
                limit=limit,
                within_crew=caller.has_crew_token,
            )
            standings = self.standings(connection, reader)
        if len(rows) > MOST_ROWS:
            raise TooMany
        return {"rows": [_shown(row, by) for row in rows], "budgets": [each.as_dict() for each in standings]}

    def standings(self, connection: Connection, reader: Reader) -> list[Standing]:
        """Return the budgets whose figures the reader may see."""
        all_of_them = self._budgets.standings(connection, now=self._database.now())
        return [each for each in all_of_them if reader.may_see_figures(each)]

    def refusal(self, caller: Principal, standing: Standing) -> tuple[str, dict[str, Any]]:
        """Return the sentence and the data for a kickoff that a budget refuses."""
        with_figures = Reader(caller, self._crew).may_see_figures(standing)
        return standing.sentence(with_figures=with_figures), standing.body(with_figures=with_figures)


def _shown(row: Row[Any], by: Collection[str]) -> dict[str, Any]:
    key = {name: getattr(row, name) for name in by}
    if "day" in key:
        key["day"] = (date(1970, 1, 1) + timedelta(days=int(key["day"]))).isoformat()
    if "owner" in key:
        key["owner"] = ORGANIZATION if key["owner"] is None else key["owner"]
    tokens = {name: int(getattr(row, name)) for name in ("executions", *usage_sums.TOKENS)}
    return {**key, **tokens, "cost_usd": None if row.unpriced else round(float(row.cost_usd), 10)}


def _parsed(name: str, text: str) -> date:
    with suppress(ValueError):
        if DAY.fullmatch(text):
            return date.fromisoformat(text)
    raise BadPeriod(f"{name} must be a date, such as 2026-11-28.")


def _day(moment: float) -> date:
    return datetime.fromtimestamp(moment, timezone.utc).date()


def _start(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc).timestamp()
