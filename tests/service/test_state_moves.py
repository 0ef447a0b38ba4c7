"""Every move from every state, in the database: the table that follows is the law, and nothing else is possible."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import insert, select

from crew_service.storage import queries, states
from crew_service.storage.database import Database
from crew_service.storage.queries import Fence
from crew_service.storage.states import Move, State
from crew_service.storage.tables import executions

# For each move the state that it leads to, and the states from which it is allowed.
LAW = {
    "CLAIM": ("running", {"queued"}),
    "NOTE": ("running", {"running"}),
    "REQUEUE": ("queued", {"running"}),
    "WAIT": ("waiting", {"running"}),
    "RESUME": ("queued", {"waiting"}),
    "GIVE_UP": ("failed", {"waiting"}),
    "COMPLETE": ("completed", {"running"}),
    "FAIL": ("failed", {"running"}),
    "STOP": ("stopped", {"queued", "running", "waiting"}),
}
OVER = {"completed", "failed", "stopped"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(str(tmp_path_factory.mktemp("moves") / "x.db"))
    yield database
    database.close()


def put(database: Database, state: State) -> str:
    """Store an execution in a state, in its third segment after two writes; return its id."""
    execution_id = f"it-{state}"
    with database.writing() as connection:
        connection.execute(executions.delete())
        times = {"created_at": 1.0, "due_at": 1.0, "updated_at": 1.0}
        row = {"id": execution_id, "kickoff_id": execution_id, "state": state, "segment": 3, "writes": 2}
        connection.execute(insert(executions).values(**row, **times, claimed_by="p", inputs={}, asked=[]))
    return execution_id


def row(database: Database) -> tuple[str, str | None, float, int]:
    with database.reading() as connection:
        found = connection.execute(select(executions)).one()
    return found.state, found.claimed_by, found.updated_at, found.writes


def test_the_law_names_every_move_and_every_end() -> None:
    moves = {name: move for name, move in vars(states).items() if isinstance(move, Move)}
    assert {name: (str(move.target), set(map(str, move.sources))) for name, move in moves.items()} == LAW
    assert set(map(str, states.OVER)) == OVER


@pytest.mark.parametrize("name", LAW)
def test_a_move_is_made_from_its_own_states_only(database: Database, name: str) -> None:
    for state in State:
        _try_move(database, name, state)


def _try_move(database: Database, name: str, state: State) -> None:
    target, sources = LAW[name]
    execution_id = put(database, state)
    with database.writing() as connection:
        made = queries.move(connection, execution_id, getattr(states, name), now=2.0)
        elsewhere = queries.move(connection, "another", getattr(states, name), now=2.0)
    assert made is (state in sources), state
    assert elsewhere is False
    assert row(database) == ((target, None, 2.0, 2) if made else (state, "p", 1.0, 2)), state


@pytest.mark.parametrize("name", LAW)
def test_a_segment_writes_only_from_its_states_and_counts_writes(database: Database, name: str) -> None:
    for state in State:
        _try_fenced_move(database, name, state)


def _try_fenced_move(database: Database, name: str, state: State) -> None:
    target, sources = LAW[name]
    execution_id = put(database, state)
    with database.writing() as connection:
        made = queries.write_fenced(connection, Fence(execution_id, 3, 2), getattr(states, name), now=2.0)
    assert made is (state in sources), state
    kept_by = "p" if name == "NOTE" else None
    assert row(database) == ((target, kept_by, 2.0, 3) if made else (state, "p", 1.0, 2)), state


@pytest.mark.parametrize(("segment", "writes"), [(2, 2), (4, 2), (3, 1), (3, 3)])
def test_a_segment_that_was_replaced_writes_nothing(database: Database, segment: int, writes: int) -> None:
    execution_id = put(database, State.RUNNING)
    with database.writing() as connection:
        assert not queries.write_fenced(connection, Fence(execution_id, segment, writes), states.COMPLETE, now=2.0)
        assert not queries.write_fenced(connection, Fence("another", 3, 2), states.COMPLETE, now=2.0)
    assert row(database) == ("running", "p", 1.0, 2)
