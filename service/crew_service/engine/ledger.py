"""Books usage into the sums by hour, crew, owner and model, at the prices of the moment.

The service books what a crew reports in the transaction that stores it with the execution, so that neither is ever
without the other. Tokens thereby belong to the hour in which the database first saw them. What an earlier release has
stored is booked later, for the hour of that execution's last write.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection, Row

from crew_service.engine import pricing, usage
from crew_service.engine.background import Background
from crew_service.engine.run_state import MOST_TOKENS
from crew_service.prices import COUNTED, UNCOUNTED, Prices
from crew_service.storage import integrity, queries, usage_sums
from crew_service.storage.database import Database
from crew_service.storage.states import State
from crew_service.storage.usage_sums import HOUR

PAUSE = 5.0  # seconds between searches for what an earlier release has stored
LONGEST = 3600.0  # maximum seconds for a round
KEPT = 400 * 86400.0  # seconds: 13 months

OF_ADDING = (*queries.HEAD, "crew_token", "tokens", "usage", "model_usage", "booked", "writes")


class Ledger:
    """:param keep_seconds: how long an execution is kept after its end; its usage is kept for 13 months more"""

    def __init__(self, database: Database, prices: Prices, *, keep_seconds: float = 0.0) -> None:
        self._database = database
        self._prices = prices
        self._kept = KEPT + keep_seconds
        self._looked_at = 0.0  # when the executions were searched last
        self._added_up = 0  # rows before this hour have been merged
        self._is_shared = False  # with an earlier release, at that time
        self.loop = Background("ledger", self._step, pause=PAUSE, behind=LONGEST)
        self.stop = self.loop.stop

    def start(self) -> None:
        """Book what was stored before an upgrade, before anything is judged by the sums."""
        pricing.settle(self._database, self._prices)
        with self._database.reading() as connection:
            is_new = usage_sums.is_empty(connection)
        if is_new or not self._database.is_sqlite:  # an SQLite file has one writer at a time, of one release
            self._catch_up()
        self.loop.start()

    def book(
        self, connection: Connection, row: Row[Any], before: usage.ByModel, after: usage.ByModel, now: float
    ) -> None:
        """Book the difference between two states of an execution's usage by model."""
        key = {"hour": int(now // HOUR), "crew": row.crew, "owner": row.owner, "crew_token": row.crew_token}
        is_first = not any(_uses(model, before) for model in before)
        rows: list[dict[str, Any]] = []
        for model in dict.fromkeys((*after, *before)):
            more = usage.since(after.get(model, {}), before.get(model, {}))
            if any(more.values()):
                numbers = {
                    "executions": int(is_first and not rows),
                    "of_model": _uses(model, after) - _uses(model, before),
                }
                rows.append({**key, "model": model.replace("\0", ""), **numbers, **self._priced(model, more)})
        usage_sums.add(connection, rows)

    def add(self, execution_id: str, used: usage.Figures, models: usage.ByModel) -> None:
        """Book usage from outside the segments of an execution, and add it to the execution.

        If somebody has answered in the meantime, the segment that runs by now writes only its own figures: then only
        the sums contain this usage.
        """
        now = self._database.now()
        with self._database.writing() as connection:
            row = queries.locked(connection, execution_id, OF_ADDING)
            if row is None or not integrity.is_readable(row):
                return
            totals = usage.added(usage.totals_of(row), used)
            of_models = usage.merge(usage.read(row.model_usage), models)
            after = usage.by_model(totals, of_models)
            self.book(connection, row, usage.read(row.booked), after, now)
            if row.state == State.RUNNING:
                return
            tokens = min(totals["total_tokens"], MOST_TOKENS)
            values = {"tokens": tokens, "usage": totals, "model_usage": of_models or None, "writes": row.writes + 1}
            usage_sums.book(connection, row.id, after, tokens, **values)

    def _priced(self, model: str, more: usage.Figures) -> dict[str, Any]:
        """Price an increase; a decrease, of tokens that now belong to another model, has no price."""
        cost = self._prices.cost(model, more) if self._prices and more["total_tokens"] >= 0 else None
        unpriced = more["total_tokens"] + more[UNCOUNTED] if cost is None else 0
        return {**{name: more[name] for name in COUNTED}, "unpriced": unpriced, "cost_usd": cost or 0.0}

    def book_claimed(self, connection: Connection, ids: list[str]) -> None:
        """Book what an earlier release stored with these executions, so that their next segment starts from there."""
        self._book_rows(connection, usage_sums.unbooked(connection, ids))

    def book_shared(self, connection: Connection) -> None:
        """Book what earlier releases have stored, if any of them is running."""
        if usage_sums.is_written_by_earlier(connection):
            self._book_rows(connection, usage_sums.unbooked(connection, ended_after=self._looked_at))

    def _catch_up(self) -> None:
        now, more = self._database.now(), True
        with self._database.writing() as connection:  # all of it or nothing: the sums are empty only once
            while more:
                rows = usage_sums.unbooked(connection, ended_after=self._looked_at)
                self._book_rows(connection, rows)
                more = len(rows) == usage_sums.AT_ONCE
        self._looked_at, self._added_up = now, 0

    def _step(self) -> None:
        pricing.settle(self._database, self._prices)
        was_shared = self._is_shared
        with self._database.reading() as connection:
            self._is_shared = usage_sums.is_written_by_earlier(connection)
        if was_shared or self._is_shared:
            self._catch_up()
        more, newest = True, self._added_up + 1
        while more and not self.loop.is_stopping:
            with self._database.writing() as connection:
                more = usage_sums.add_up(connection, since=self._added_up)
                newest = usage_sums.newest_hour(connection)
                usage_sums.forget(connection, before=self._database.now() - self._kept)
        self._added_up = newest - 1

    def _book_rows(self, connection: Connection, rows: list[Row[Any]]) -> None:
        for row in rows:
            if integrity.is_readable(row):
                before, at = usage.read(row.booked), row.updated_at
                after = usage.by_model(usage.so_far(row), row.model_usage)
            else:
                before, at = {}, self._database.now()
                after = usage.by_model({"total_tokens": row.tokens - row.booked_tokens}, None)
            self.book(connection, row, before, after, at)
            usage_sums.book(connection, row.id, after, row.tokens)


def _uses(model: str, by_model: usage.ByModel) -> int:
    return int(any(by_model.get(model, {}).values()))
