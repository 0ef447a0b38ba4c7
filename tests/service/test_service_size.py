"""Row S26: what a list, a search or the metrics cost does not grow with what is stored and finished.

Steps are counted and not seconds: those of SQLite's virtual machine, and the rows that PostgreSQL's plans touch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event, insert
from sqlalchemy.engine import Engine

from crew_service.engine import overview
from crew_service.engine.budgets import Budgets
from crew_service.engine.executions import Executions
from crew_service.engine.metrics import Metrics, Pool
from crew_service.engine.overview import Overview
from crew_service.engine.principals import Principal
from crew_service.engine.retention import add_up_counts, forget_old
from crew_service.storage import views
from crew_service.storage.database import Database
from crew_service.storage.states import State
from crew_service.storage.tables import dead_letters, executions

Action = Callable[[Database], Any]
FEW = 1_000
RUNNING = 3  # the oldest of all
ANN = 5  # executions of a user who has few, and none that is newer than the running ones
AT_ONCE = 5_000  # rows in one transaction
STEPS = 100  # of SQLite between two calls of the counter


def some_id(number: int) -> str:
    return str(UUID(int=(number * 2**100 + number * 7919 * 2**40) % 2**128))


def row(number: int) -> dict[str, Any]:
    """The one with the number 0 is the oldest."""
    state = State.RUNNING if number < RUNNING else State.COMPLETED if number % 10 else State.FAILED
    owner = "ann" if number < RUNNING + ANN else "bob"
    times = dict.fromkeys(("created_at", "updated_at", "due_at"), 1_000.0 + number)
    ended = None if state is State.RUNNING else times["created_at"]
    made = {"id": some_id(number), "kickoff_id": some_id(number), "owner": owner, "state": state, **times}
    return {
        **made,
        "ended_at": ended,
        "aged_from": ended,
        "inputs": {"topic": f"tea {number}"},
        "asked": [],
        "crew": "",
        "dag_id": "few" if number < RUNNING else "most",
    }


def letter(number: int) -> dict[str, Any]:
    moments = {"created_at": 1.0, "given_up_at": 1.0 + number}
    sent = {"kind": "task", "url": "http://x", "body": "{}", "attempts": 20, "problem": "gone"}
    return {"key": some_id(number), "execution_id": some_id(number), **sent, **moments}


def filled(database: Database, rows: int) -> Database:
    for table, of in ((executions, row), (dead_letters, letter)):
        for start in range(0, rows, AT_ONCE):
            with database.writing() as connection:
                connection.execute(insert(table), [of(number) for number in range(start, min(rows, start + AT_ONCE))])
    add_up_counts(database)
    return database


@dataclass
class Counter:
    """Counts what statements of every connection cost."""

    spent: int = 0
    is_counting: bool = False

    def step(self) -> int:
        self.spent += 1
        return 0

    def connected(self, connection: Any, record: Any) -> None:
        if hasattr(connection, "set_progress_handler"):
            connection.set_progress_handler(self.step, STEPS)

    def executed(self, connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if self.is_counting and connection.dialect.name == "postgresql" and statement.startswith("SELECT"):
            self.is_counting = False
            plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar_one()
            self.spent += touched((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
            self.is_counting = True

    def of(self, action: Action, database: Database) -> int:
        action(database)  # statements are compiled, caches are filled
        self.spent, self.is_counting = 0, True
        action(database)
        self.is_counting = False
        return self.spent


def touched(plan: dict[str, Any]) -> int:
    """Rows of a plan, also those that were read in vain."""
    removed = sum(plan.get(name, 0) for name in ("Rows Removed by Filter", "Rows Removed by Index Recheck"))
    own = (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    return int(own) + sum(map(touched, plan.get("Plans", ())))


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter()
    event.listen(Engine, "connect", counter.connected)
    event.listen(Engine, "after_cursor_execute", counter.executed)
    yield counter
    event.remove(Engine, "connect", counter.connected)
    event.remove(Engine, "after_cursor_execute", counter.executed)


def page(owner: str | None = None, **which: Any) -> Action:
    return lambda database: Overview(database, "").listed(views.Filter("", owner, **which))


def listed(owner: str | None, *states: State) -> Action:
    return lambda database: Executions(database, crew="").latest(Principal(owner), 100, states)


def metrics(database: Database) -> bytes:
    shown = Metrics([""])
    shown.watch(database, {"": Pool(4, lambda: 0)}, Budgets())
    return shown.text()


ACTIONS = {
    "the page": page(),
    "the page of a user with few": page(owner="ann"),
    "the page of one state": page(states=frozenset({State.RUNNING})),
    "the page of a state that nothing has": page(states=frozenset({State.WAITING})),
    "a page at the end": page(before=(1_020.0, some_id(20))),
    "a page at the end, of one state": page(before=(1_020.0, some_id(20)), states=frozenset({State.COMPLETED})),
    "a search without a hit": page(search="coffee"),
    "a search for an id": page(search=some_id(5)),
    "a search for the start of no id": page(search="ffffffff-ffff"),
    "a DAG": page(dag_id="most"),
    "a DAG with few": page(dag_id="few"),
    "a DAG, of a state that nothing has": page(dag_id="most", states=frozenset({State.WAITING})),
    "a DAG, of a user with few": page(owner="ann", dag_id="most"),
    "a search in a DAG": page(dag_id="most", search="coffee"),
    "the list": listed(None),
    "the list of those that run": listed(None, State.QUEUED, State.RUNNING),
    "the list of a user's that run": listed("ann", State.QUEUED, State.RUNNING),
    "the list of a user's in a state that many others' have": listed("ann", State.COMPLETED),
    "the metrics": metrics,
}


@pytest.fixture
def of_size(request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Database]:
    monkeypatch.setattr(views, "SEARCHED", FEW // 2)
    monkeypatch.setattr(overview, "LETTERS_SEARCHED", FEW // 2)

    def of_size(rows: int, kind: str) -> Database:
        if kind == "sqlite":
            return filled(Database(str(tmp_path / f"{rows}.db")), rows)
        return filled(Database(request.getfixturevalue("postgresql")), rows)

    return of_size


def grown(counter: Counter, few: Database, many: Database) -> dict[str, tuple[int, int]]:
    costs = {name: (counter.of(action, few), counter.of(action, many)) for name, action in ACTIONS.items()}
    return {name: (before, after) for name, (before, after) in costs.items() if after > 1.3 * before + 10}


@pytest.mark.slow
@pytest.mark.row("S26")
@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_no_list_costs_more_where_many_executions_are_stored(
    counter: Counter, of_size: Callable[..., Database], rows: int
) -> None:
    few, many = of_size(FEW, "sqlite"), of_size(rows, "sqlite")
    assert counter.of(page(), few) > 0
    assert grown(counter, few, many) == {}


@pytest.mark.slow
@pytest.mark.row("S26")
@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_on_postgresql_no_list_reads_more_than_it_shows(
    counter: Counter, of_size: Callable[..., Database], rows: int
) -> None:
    many = of_size(rows, "postgresql")
    with many.writing() as connection:
        connection.exec_driver_sql("ANALYZE")
    costs = {name: counter.of(action, many) for name, action in ACTIONS.items()}
    assert all(costs.values())
    assert {name: cost for name, cost in costs.items() if cost > 3 * FEW} == {}


@pytest.mark.slow
@pytest.mark.row("S26")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_metrics_count_what_is_stored_whoever_writes(of_size: Callable[..., Database], kind: str) -> None:
    database = of_size(100, kind)
    with database.writing() as connection:
        connection.execute(executions.update().where(executions.c.id == some_id(0)).values(state=State.WAITING))
        connection.execute(executions.update().where(executions.c.id == some_id(1)).values(writes=1))
    add_up_counts(database)
    assert forget_old(database, before=1_050.5) == 48
    shown = metrics(database).decode()
    stored = {"running": 2, "waiting": 1, "completed": 45, "failed": 4}
    for state, number in stored.items():
        assert f'crew_service_executions{{state="{state}"}} {number}.0' in shown
    assert "crew_service_webhooks_given_up 52.0" in shown


@pytest.mark.slow
@pytest.mark.row("S26")
def test_pages_and_searches_show_what_they_did(of_size: Callable[..., Database]) -> None:
    database = of_size(FEW, "sqlite")

    def numbers(**which: Any) -> list[float]:
        return [row.created_at - 1_000 for row in page(**which)(database).rows]

    assert numbers()[:3] == [999, 998, 997]
    assert numbers(before=(1_003.0, some_id(3))) == [2, 1, 0]
    assert numbers(owner="ann") == [7, 6, 5, 4, 3, 2, 1, 0]
    assert numbers(owner="ann", states=frozenset({State.COMPLETED})) == [7, 6, 5, 4, 3]
    assert numbers(states=frozenset({State.RUNNING, State.FAILED}), before=(1_020.0, "x"))[-4:] == [10, 2, 1, 0]
    assert numbers(search="tea 99") == [999, 998, 997, 996, 995, 994, 993, 992, 991, 990]
    assert numbers(search="TEA 99") == numbers(search="tea 99")
    assert [numbers(search=each) for each in ("tea_99", "tea%99", "tea/99")] == [[], [], []]
    assert numbers(search="tea 99", before=(1_992.0, some_id(992))) == [991, 990]
    assert numbers(search="tea 99", owner="ann") == []
    assert numbers(search=some_id(5)[:12]) == [5]
    assert numbers(search=some_id(5).upper(), owner="bob") == []
    assert numbers(search="tea 5", owner="ann") == [], "inputs are searched among the newest only"
