"""Reads and writes of executions, one transaction each: what is found, in which order, and what an end erases."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from databases import TIMES, put
from sqlalchemy import event, select, text, update
from sqlalchemy.dialects import postgresql

from crew_service.storage import newest, queries, states
from crew_service.storage.database import Database
from crew_service.storage.engines import SMALL
from crew_service.storage.json_values import JsonText
from crew_service.storage.queries import LONG_ERROR, LONGEST_ERROR, Calm, Fence
from crew_service.storage.states import State
from crew_service.storage.tables import executions, results


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(str(tmp_path_factory.mktemp("queries") / "x.db"))
    yield database
    database.close()


@pytest.fixture
def database(file: Database) -> Database:
    with file.writing() as connection:
        connection.execute(executions.delete())
        connection.execute(results.delete())
    return file


def row(database: Database, execution_id: str = "a") -> Any:
    with database.reading() as connection:
        return connection.execute(select(executions).where(executions.c.id == execution_id)).one()


def test_an_execution_begins_queued_and_nobody_was_asked(database: Database) -> None:
    with database.writing() as connection:
        queries.create(connection, id="a", kickoff_id="k", inputs={"topic": "tea"}, **TIMES)
    made = row(database)
    assert (made.state, made.asked, made.inputs, made.kickoff_id) == ("queued", [], {"topic": "tea"}, "k")


FINDERS = [
    (queries.by_id, {"a": "a", "b": "b"}),
    # The polled id comes first: after a live resume it may be what another execution began with.
    (queries.by_either_id, {"a": "a", "b": "a", "c": "b"}),
    (queries.locked, {"a": "a", "b": "a", "c": "b"}),
]


@pytest.mark.parametrize(("find", "found"), FINDERS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("some_id", ["a", "b", "c", "d", "", "a\0"])
def test_an_execution_is_found_by_its_ids(database: Database, find: Any, found: dict[str, str], some_id: str) -> None:
    put(database, "a", "b")
    put(database, "b", "c")
    with database.writing() as connection:
        seen = find(connection, some_id)
    assert (seen and seen.id) == found.get(some_id)


@pytest.mark.parametrize("find", [find for find, _ in FINDERS], ids=lambda find: find.__name__)
def test_an_id_postgresql_cannot_compare_is_not_queried(find: Any) -> None:
    assert find(None, "a\0b") is None


def test_a_row_is_locked_by_either_id() -> None:
    """SQLite has no such lock; the statement for the other databases has."""
    asked: list[str] = []

    class Connection:
        def execute(self, query: Any, values: Any) -> Any:
            asked.append(f"{query}".split("WHERE")[1].strip())
            return self

        def one_or_none(self) -> None:
            return None

    connection: Any = Connection()
    assert queries.locked(connection, "a") is None
    assert asked == ["executions.kickoff_id = :id FOR UPDATE", "executions.id = :id FOR UPDATE"]


def test_a_poll_reads_the_columns_that_it_tells_of(database: Database) -> None:
    put(database, "a", "k", crew="tea", owner="ann", output="x")
    with database.reading() as connection:
        seen = connection.execute(queries.status_query(("output", "error")), {"key": "k"}).one()
        assert connection.execute(queries.status_query(()), {"key": "a"}).one_or_none() is None
    assert seen._asdict() == {
        **{"id": "a", "kickoff_id": "k", "crew": "tea", "owner": "ann", "state": "running"},
        **{"output": "x", "error": None},
    }


LONGEST = "x" * (SMALL - 2)  # with its quotes, just small
JUST_SMALL = {"x": "y" * (SMALL - len('{"x": ""}'))}


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ({}, True),
        ({"output": LONGEST, "error": LONGEST}, True),
        ({"output": f"{LONGEST}x"}, False),
        ({"error": f"{LONGEST}x"}, False),
    ],
)
def test_a_status_is_small_if_each_of_its_values_is(database: Database, values: Any, is_found: bool) -> None:
    put(database, "a", "k", **values)
    with database.reading() as connection:
        query = queries.small_status_query(("output", "completed_tasks", "error"))
        assert connection.execute(query, {"key": "a"}).one_or_none() is None
        seen = connection.execute(query, {"key": "k"}).one_or_none()
    assert (seen and (seen.output, seen.error)) == ((values.get("output"), values.get("error")) if is_found else None)


def test_postgresql_finds_wanted_statuses_before_measuring_any() -> None:
    """The offset separates the two; the size of a value as it is stored is known without reading it."""
    query = queries.small_statuses_query(("gate", "completed_tasks")).params(keys=["k"])
    compiled = query.compile(dialect=postgresql.dialect(paramstyle="named"), compile_kwargs={"literal_binds": True})
    columns = ("id", "kickoff_id", "crew", "owner", "state", "gate", "completed_tasks")
    outer, inner = (", ".join(form.format(name) for name in columns) for form in ("anon_1.{}", "executions.{0} AS {0}"))
    assert " ".join(str(compiled).split()).replace(" LIMIT ALL", "") == (
        f"SELECT {outer} FROM (SELECT {inner} FROM executions WHERE executions.kickoff_id IN ('k') "
        f"OFFSET 0) AS anon_1 WHERE NOT CASE WHEN (pg_column_size(anon_1.gate) > {SMALL}) THEN true "
        f"ELSE coalesce(length(CAST(anon_1.gate AS TEXT)), 0) > {SMALL} END"
    )


def test_a_completed_executions_output_is_passed_on_as_stored(database: Database) -> None:
    names, done = ("gate", "tasks", "output", "output_json", "error"), {"state": State.COMPLETED}
    put(database, "a", "k", **done, tasks=[{"t": 1}], output="tea", error="none")
    put(database, "b", **done, tasks=[{"t": 1}], output="broken")
    put(database, "c", tasks=[], output="running")
    with database.writing() as connection:
        connection.execute(text("UPDATE executions SET output = '{broken' WHERE id = 'b'"))
    query = queries.completed_status_query(names, is_sqlite=True)
    with database.reading() as connection:
        seen, *others = (connection.execute(query, {"key": key}).one_or_none() for key in ("k", "b", "c", "a"))
    assert others == [None, None, None]
    assert seen is not None
    assert seen._fields == (
        "id",
        "kickoff_id",
        "crew",
        "owner",
        "state",
        "gate",
        "error",
        "tasks",
        "output",
        "output_json",
    )
    assert [type(each) for each in (seen.tasks, seen.output)] == [JsonText, JsonText]
    assert (seen.tasks.text, seen.output.text, seen.output_json) == ('[{"t": 1}]', '"tea"', None)
    assert (seen.id, seen.gate, seen.error) == ("a", None, "none")
    elsewhere = str(queries.completed_status_query(names, is_sqlite=False))
    assert "json_valid" not in elsewhere
    assert str(query).count("json_valid(coalesce(executions.") == 3


def test_a_list_has_no_large_value(database: Database) -> None:
    put(database, "a", error="e" * (LONGEST_ERROR - 2), last_task=JUST_SMALL, output="out")
    put(database, "b", error="e" * (LONGEST_ERROR - 1), last_task={"x": LONGEST}, gate={"task_id": "t"}, created_at=2.0)
    with database.reading() as connection:
        seen = queries.latest(connection, crew=None, owner=None, limit=5, more=("output",))
    large, small = seen
    assert (small.error, small.last_task, small.output) == ("e" * (LONGEST_ERROR - 2), JUST_SMALL, "out")
    assert (large.error, large.gate, large.output) == (LONG_ERROR, {"task_id": "t"}, None)
    assert large.last_task == dict.fromkeys(("task_id", "key", "output", "agent", "state", "rounds"))
    assert {"webhooks", "limits", "last_step"} < set(small._fields)


def test_writes_become_visible_when_the_latest_ones_period_ends() -> None:
    none = Calm.of(SimpleNamespace(calm_writes=0, calm_shown=0, calm_at=None))
    first = none.next(10.5)
    assert none.seen(10.5) == 0
    assert first == (1, 0, 10.5)
    assert [first.seen(at) for at in (10.0, 11.9, 12.0, 9.9)] == [0, 0, 1, 1]
    second, later = first.next(11.5), first.next(12.5)
    assert (second, later) == ((2, 0, 11.5), (2, 1, 12.5))
    assert later.values == {"calm_writes": 2, "calm_shown": 1, "calm_at": 12.5}
    assert Calm.of(SimpleNamespace(**later.values)) == later


def test_a_result_has_its_figures_and_its_tasks_digest(database: Database) -> None:
    with database.writing() as connection:
        queries.add_result(connection, "a", 3, "tea", {"seconds": 1}, "digest")
        queries.add_result(connection, "b", 0, "tea")
    with database.reading() as connection:
        stored = connection.execute(select(results).order_by(results.c.execution_id)).all()
    assert stored == [("a", 3, "tea", {"seconds": 1}, "digest"), ("b", 0, "tea", None, None)]


def test_the_results_of_tasks_come_in_their_order(database: Database) -> None:
    with database.writing() as connection:
        for execution_id, position in (("a", 1), ("a", 0), ("b", 0)):
            queries.add_result(connection, execution_id, position, {"of": execution_id, "at": position})
    with database.reading() as connection:
        assert queries.tasks_of(connection, "a") == [{"of": "a", "at": 0}, {"of": "a", "at": 1}]
        assert queries.tasks_of(connection, "c") == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "dcba"),
        ({"limit": 2}, "dc"),
        ({"crew": "tea"}, "cba"),
        ({"crew": ""}, "d"),
        ({"owner": "ann"}, "ca"),
        ({"crew": "tea", "owner": "bob"}, "b"),
        ({"owner": "nobody"}, ""),
        ({"states": [State.RUNNING]}, "da"),
        ({"states": [State.RUNNING, State.WAITING]}, "dba"),
        ({"states": [], "owner": "bob"}, "b"),
    ],
)
def test_the_newest_executions_come_first_and_only_those_asked_for(database: Database, given: Any, found: str) -> None:
    states_of = [("a", State.RUNNING), ("b", State.WAITING), ("c", State.COMPLETED), ("d", State.RUNNING)]
    owners = {"a": "ann", "b": "bob", "c": "ann", "d": None}
    for at, (name, state) in enumerate(states_of):
        crew = "" if name == "d" else "tea"
        put(database, name, state=state, created_at=float(at), crew=crew, owner=owners[name])
    with database.reading() as connection:
        seen = queries.latest(connection, **{"crew": None, "owner": None, "limit": 10, **given})
    assert "".join(each.id for each in seen) == found


def test_a_move_and_a_write_carry_more_values(database: Database) -> None:
    put(database, "a", claimed_by="p", segment=3, writes=2)
    with database.writing() as connection:
        note = {"current_task": "draft", "completed_tasks": 1}
        assert queries.write_fenced(connection, Fence("a", 3, 2), states.NOTE, now=2.0, **note)
    made = row(database)
    assert (made.current_task, made.completed_tasks, made.updated_at, made.claimed_by) == ("draft", 1, 2.0, "p")
    with database.writing() as connection:
        assert queries.move(connection, "a", states.STOP, now=3.0, **queries.ended(3.0))
    assert (row(database).state, row(database).ended_at, row(database).updated_at) == ("stopped", 3.0, 3.0)


def test_an_end_erases_credentials_and_the_question(database: Database) -> None:
    put(database, "a", webhooks={"token": "secret"}, gate={"key": "secret"}, answer_by=1.0)
    with database.writing() as connection:
        assert queries.move(connection, "a", states.COMPLETE, now=3.0, **queries.ended(2.5))
    made = row(database)
    assert (made.ended_at, made.webhooks, made.gate, made.answer_by) == (2.5, None, None, None)


@pytest.mark.parametrize(
    ("fence", "written"),
    [
        (Fence("a", 3, 1), True),
        (Fence("a", 3, 2), False),
        (Fence("a", 3, 0), False),
        (Fence("a", 2, 1), False),
        (Fence("b", 3, 1), False),
    ],
)
def test_an_unanswered_commit_is_recognized_by_its_write_count(database: Database, fence: Fence, written: bool) -> None:
    put(database, "a", segment=3, writes=2, state=State.RUNNING)
    with database.reading() as connection:
        assert queries.was_written(connection, fence, states.NOTE) is written
        assert not queries.was_written(connection, fence, states.FAIL), "another write of this segment ended it"


def test_an_execution_beginning_during_a_listing_is_listed_once(database: Database) -> None:
    put(database, "a", state=State.QUEUED)

    def begins(*_: Any) -> None:
        with database.writing() as connection:
            connection.execute(update(executions).values(state=State.RUNNING))

    with database.reading() as connection:
        event.listen(connection, "after_cursor_execute", begins)
        for states_asked in ((State.RUNNING, State.QUEUED), (State.QUEUED, State.RUNNING)):
            with database.writing() as writer:
                writer.execute(update(executions).values(state=State.QUEUED))
            columns = (executions.c.id, executions.c.created_at)
            found = newest.newest(connection, columns, crew=None, owner=None, states=states_asked, limit=2)
            assert [each.id for each in found] == ["a"]


@pytest.mark.parametrize("find", [find for find, _ in FINDERS], ids=lambda find: find.__name__)
def test_only_the_wanted_columns_are_read(database: Database, find: Any) -> None:
    put(database, "a", "b")
    with database.writing() as connection:
        assert dict(find(connection, "a", ("state", "id"))._mapping) == {"state": row(database).state, "id": "a"}


def test_questions_past_their_deadline_come_oldest_first(database: Database) -> None:
    for each, at in (("late", 5.0), ("latest", 10.0), ("early", 10.5), ("never", None), ("later", 9.0)):
        put(database, each, state=State.WAITING, answer_by=at, asked=[each])
    put(database, "running", state=State.RUNNING, answer_by=1.0)
    with database.reading() as connection:
        found = queries.overdue(connection, [row(database, "late").crew, "another"], now=10.0)
    assert [tuple(each) for each in found] == [
        (each, row(database, each).crew, [each]) for each in ("late", "later", "latest")
    ]


def test_only_some_questions_are_answered_at_a_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MOST_OVERDUE", 1)
    put(database, "of a crew that nothing serves", crew="gone", state=State.WAITING, answer_by=0.5)
    for each in ("a", "b"):
        put(database, each, crew="here", state=State.WAITING, answer_by=1.0)
    with database.reading() as connection:
        assert [each.crew for each in queries.overdue(connection, ["here"], now=2.0)] == ["here"]
