"""Kills in the middle of tasks: a part of `make chaos` (CREW_CHAOS_SIZE, CREW_CHAOS_SEED)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from steps_chaos import CREW, ONCE, Killer, Model, effects, give_up_unknown, judge, start_all, table
from test_chaos import SEED, SIZE, say

from scripts.find_postgres import server_url
from scripts.stack import CrewService, ProcessGroup, wait_until
from scripts.stack.database import ThrowAwayDatabase
from tests.service.crewai.openai_server import environment

BOUND = 300.0  # seconds; after half of them nothing is killed any more
AT_ONCE = 8


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    if not (server := server_url()):
        yield f"sqlite:///{tmp_path}/crew-service.db"
        return
    database = ThrowAwayDatabase(server)
    yield database.url
    database.drop()


@pytest.mark.timeout(BOUND + 180)
@pytest.mark.row("S1", "S19")
def test_chaos_repeats_no_step_whose_answer_was_stored(database: str, tmp_path: Path) -> None:
    is_shared = not database.startswith("sqlite")
    kind = "PostgreSQL, two services" if is_shared else "SQLite"
    say(f"\nchaos: {SIZE} executions of ten steps, SEED={SEED}, {kind}")
    model = Model(SEED)
    env = {**environment(model.server), "CREWAI_STORAGE_DIR": str(tmp_path)}
    options = ["--workers", str(AT_ONCE), "--tool", f"{ONCE}=once"]
    with ProcessGroup() as group:
        services = [
            CrewService(CREW, name=f"steps-{number}", options=options, database=database, env=env, group=group).start()
            for number in range(1 + is_shared)
        ]
        cases = start_all(services, tmp_path, SIZE)
        killer = Killer(services, database, SEED)

        def over() -> bool:
            still = "SELECT 1 FROM executions WHERE ended_at IS NULL AND state <> 'waiting' LIMIT 1"
            return not killer.rows(still)

        began = time.monotonic()
        with killer:
            try:
                wait_until(over, "the end of all executions", patience=BOUND / 2)
            except AssertionError:
                say("the time for kills is over; what is left goes on undisturbed")
        wait_until(over, "the end of all executions", patience=BOUND - (time.monotonic() - began))
        give_up_unknown(services[0], killer)
        made = model.asked + effects(tmp_path / "effects")
        verdict = judge(cases, killer, made)
        say(table(killer, made, verdict, SIZE))
    model.server.close()
    assert not verdict.wrong, "\n".join(verdict.wrong)
    assert killer.kills.total() > 0, "something was killed at all"
