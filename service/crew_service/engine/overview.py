"""Collects the content of the execution list, within limits; details.py does the same for one execution."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import NoResultFound

from crew_service.engine import usage
from crew_service.engine.details import Draft, draft_of
from crew_service.engine.questions import question_in
from crew_service.prices import Prices
from crew_service.storage import integrity, json_values, views, webhooks
from crew_service.storage.database import Database
from crew_service.storage.newest import Position
from crew_service.storage.states import State
from crew_service.storage.views import Filter as Filter

PAGE = 25  # executions on a page
DRAFTS = 3  # waiting drafts shown above the list with their forms
WAITING = 100  # waiting executions shown in total: those beyond `DRAFTS` as links
LONGEST_QUESTION = 100_000  # maximum characters of a shown draft's stored question
LETTERS = 20  # undelivered webhooks shown
LETTERS_SEARCHED = 10_000  # newest webhooks searched for those of a user and a crew


@dataclass(frozen=True)
class Listing:
    rows: list[Row[Any]]
    has_older: bool
    drafts: list[Draft]
    waiting: list[Row[Any]]  # the other waiting executions, whose drafts are behind links
    more_wait: bool  # whether there may be more than `waiting` contains
    letters: list[Row[Any]]
    costs: dict[str, float | None]  # USD by execution, if known


class Overview:
    """The overview of one crew."""

    def __init__(self, database: Database, crew: str, prices: Prices | None = None) -> None:
        self._database = database
        self._crew = crew
        self._prices = prices or Prices()

    def listed(self, which: Filter) -> Listing:
        with self._database.reading() as connection:
            rows = views.newest(connection, which, limit=PAGE + 1)
            waiting: list[Row[Any]] = []
            is_start = which.before is None and which.dag_id is None
            if is_start and not which.search:
                only = Filter(self._crew, which.owner, frozenset({State.WAITING}))
                waiting = views.newest(connection, only, limit=WAITING)
            drafts = [draft for row in waiting[:DRAFTS] if (draft := _short_draft(connection, row.id))]
            ids = {draft.execution_id for draft in drafts}
            others = [row for row in waiting if row.id not in ids]
            newest = {"limit": LETTERS, "among": LETTERS_SEARCHED}
            letters = self._letters(connection, owner=which.owner, **newest) if is_start else []
        costs = {row.id: (self._prices.priced(usage.so_far(row)) or {}).get("cost_usd") for row in rows[:PAGE]}
        return Listing(rows[:PAGE], len(rows) > PAGE, drafts, others, len(waiting) == WAITING, letters, costs)

    def _letters(self, connection: Connection, **which: Any) -> list[Row[Any]]:
        return webhooks.letters(connection, crew=self._crew, **which)


def _short_draft(connection: Connection, execution_id: str) -> Draft | None:
    """Return a waiting draft, but only if it is short, because the list is requested often."""
    try:
        read = views.wholes(connection, execution_id, ("gate", "meta"), most=LONGEST_QUESTION)
    except NoResultFound:  # stopped and deleted in the meantime
        return None
    stored, meta = (json_values.loads(read[name] or "null") for name in ("gate", "meta"))
    return draft_of(execution_id, question_in(stored), meta) if integrity.is_question(stored) else None


beginning = views.beginning


def cursor(row: Row[Any]) -> str:
    """Return an execution's place in the list as text."""
    return f"{row.created_at!r},{row.id}"


def place(text: str) -> Position | None:
    """Return the place that a cursor names; None if it names none."""
    moment, _, last = text.partition(",")
    with suppress(ValueError):
        return float(moment), last
    return None
