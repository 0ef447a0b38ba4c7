"""Gathers what the page shows of executions, within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Connection, Row

from crew_service.engine import usage
from crew_service.engine.origin import Origin, origin
from crew_service.engine.principals import Principal
from crew_service.engine.printed import MOST
from crew_service.prices import Prices
from crew_service.storage import printed, views, webhooks
from crew_service.storage.database import Database
from crew_service.storage.states import OVER, State
from crew_service.storage.tables import executions
from crew_service.storage.views import Filter as Filter
from crew_service.storage.views import Part

PAGE = 25  # executions on a page
DRAFTS = 3  # that wait and stand above the list with their forms
WAITING = 100  # more that wait, as links
PRINTED = 32 * 1024  # bytes of what a crew printed; the rest is a link away
LETTERS = 20  # given up webhooks shown
LETTERS_SEARCHED = 10_000  # of the newest, among which those of a user and a crew are looked for


@dataclass(frozen=True)
class Draft:
    """What waits for a person."""

    execution_id: str
    task_id: str
    key: str
    agent: str
    text: str
    is_cut: bool
    round: int
    feedback: str = ""  # what the person said to the earlier version
    before: str = ""  # the earlier version
    question: str = ""  # of a Flow
    outcomes: list[str] | None = None  # of a Flow: what may be chosen; empty for a text
    question_id: str = ""  # of a Flow
    sha256: str = ""  # of the whole text
    origin: Origin | None = None


@dataclass(frozen=True)
class Listing:
    rows: list[Row[Any]]
    has_older: bool
    drafts: list[Draft]
    waiting: list[Row[Any]]  # that wait too, with drafts that are a link away
    more_wait: bool  # than these
    letters: list[Row[Any]]
    costs: dict[str, float | None]  # USD by execution, where it is known


@dataclass(frozen=True)
class Details:
    row: Row[Any]
    parts: dict[str, Part]
    tasks: list[tuple[int, Part]]
    draft: Draft | None
    letters: list[Row[Any]]
    printed: str  # for the organization only
    printed_is_cut: bool
    used: usage.Usage | None

    @property
    def is_over(self) -> bool:
        return self.row.state in OVER

    @property
    def origin(self) -> Origin | None:
        return origin(self.parts["meta"].value)


COLUMNS = (
    *("id", "kickoff_id", "owner", "state", "created_at", "updated_at", "ended_at", "work_seconds"),
    *("completed_tasks", "tokens", "usage", "model_usage"),
)
TEXTS = ("inputs", "meta", "output", "error", "current_task")


class Overview:
    """Of one crew."""

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
            drafts = [draft for row in waiting[:DRAFTS] if (draft := _draft(connection, row.id))]
            shown = {draft.execution_id for draft in drafts}
            others = [row for row in waiting if row.id not in shown]
            newest = {"limit": LETTERS, "among": LETTERS_SEARCHED}
            letters = self._letters(connection, owner=which.owner, **newest) if is_start else []
        costs = {row.id: (self._prices.priced(usage.so_far(row)) or {}).get("cost_usd") for row in rows[:PAGE]}
        return Listing(rows[:PAGE], len(rows) > PAGE, drafts, others, len(waiting) == WAITING, letters, costs)

    def execution(self, caller: Principal, execution_id: str) -> Details | None:
        with self._database.reading() as connection:
            row = self._row(connection, caller, execution_id)
            if row is None:
                return None
            return Details(
                row,
                views.parts(connection, row.id, TEXTS),
                views.task_parts(connection, row.id),
                _draft(connection, row.id, whole=True) if row.state == State.WAITING else None,
                self._letters(connection, owner=None, execution_id=row.id, limit=100),
                *(printed.last(connection, row.id, most=PRINTED) if caller.user is None else ("", False)),
                self._prices.priced(usage.so_far(row)),
            )

    def text(self, caller: Principal, execution_id: str, part: str) -> str | None:
        """The whole of one text: `draft`, `output`, `printed`, or the number of a task."""
        with self._database.reading() as connection:
            if self._row(connection, caller, execution_id) is None:
                return None
            if part == "draft":
                gate = _gate(connection, execution_id)
                return str(gate["output"]) if gate else None
            if part == "printed":
                return printed.last(connection, execution_id, most=MOST)[0] if caller.user is None else None
            position = int(part) if part.isascii() and part.isdigit() and len(part) < 6 else None
            if position is None and part != "output":
                return None
            found = views.whole(connection, execution_id, position)
        return found["output"] if isinstance(found, dict) else found if isinstance(found, str) else None

    def _row(self, connection: Connection, caller: Principal, execution_id: str) -> Row[Any] | None:
        mine = (executions.c.id == execution_id, executions.c.crew == self._crew)
        row = connection.execute(select(*(executions.c[name] for name in COLUMNS)).where(*mine)).one_or_none()
        return row if row is not None and caller.may_see(row.owner) else None

    def _letters(self, connection: Connection, **which: Any) -> list[Row[Any]]:
        return webhooks.letters(connection, crew=self._crew, **which)


def _gate(connection: Connection, execution_id: str) -> dict[str, Any] | None:
    gate = connection.execute(select(executions.c.gate).where(executions.c.id == execution_id)).scalar_one_or_none()
    return gate if isinstance(gate, dict) else None


def _draft(connection: Connection, execution_id: str, *, whole: bool = False) -> Draft | None:
    """What waits; without `whole` only where it is short."""
    read = views.parts(connection, execution_id, ("gate", "meta"))
    short = read["gate"].value
    gate = _gate(connection, execution_id) if whole else short if isinstance(short, dict) else None
    if gate is None:
        return None
    text, rounds = str(gate["output"]), gate["rounds"]
    return Draft(
        execution_id,
        gate["task_id"],
        gate["key"],
        gate["agent"],
        text[: views.SHOWN],
        len(text) > views.SHOWN,
        len(rounds) + 1,
        rounds[-1]["feedback"] if rounds else "",
        str(rounds[-1]["output"]) if rounds else "",
        str(gate.get("question") or ""),
        gate.get("outcomes"),
        gate.get("question_id") or "",
        gate.get("output_sha256") or "",
        origin(read["meta"].value),
    )


beginning = views.beginning


def cursor(row: Row[Any]) -> str:
    return f"{row.created_at!r},{row.id}"
