"""Everything at once: `make chaos` (CREW_CHAOS_SIZE, CREW_CHAOS_SEED)."""

from __future__ import annotations

import os
import time
from random import SystemRandom

import pytest
from chaos import CREWS, Part, check, own_api, parts, table, wait_for_all
from evidence import database_text, files_text
from killer import Killer
from review_verdict import Verdict, answered, moments
from reviewer import Reviewer

from scripts.stack import AirflowStack, CrewService, wait_until
from scripts.stack.waiting import FACTOR

SIZE = int(os.environ.get("CREW_CHAOS_SIZE", "100"))
SEED = int(os.environ.get("CREW_CHAOS_SEED") or SystemRandom().randrange(1_000_000))
RATE = 0.2
BOUND = 540.0 * FACTOR  # seconds, with the start of Airflow about ten minutes
CALM = 0.7  # of the bound: then nothing is killed or disturbed any more


@pytest.mark.timeout(BOUND + 180)
@pytest.mark.row("A1", "A2", "A3", "A13", "N1", "N2", "N3", "N4", "N7", "N11", "N12", "S1")
@pytest.mark.row("N13", "N18", "N19", "N20", "N21", "N23", "N27", "N28")
def test_under_chaos_executions_stay_unique_runs_consistent_and_tokens_secret(
    airflow: AirflowStack,
) -> None:
    began = time.monotonic()
    say(f"\nchaos: {SIZE} executions, SEED={SEED}, {'PostgreSQL' if airflow.database else 'SQLite'}")
    services = {
        name: CrewService(crew, dialect=dialect, name=f"chaos-{name}", group=airflow.group).start()
        for name, (crew, dialect) in CREWS.items()
    }
    with parts(airflow, services, SIZE, SEED, RATE) as started, _reviewer(airflow, started) as reviewer:
        with Killer(airflow, started, SEED) as killer:
            written = wait_until(lambda: _with_triggers(airflow), "a trigger row to read")
            try:
                wait_for_all(started, CALM * BOUND - (time.monotonic() - began))
            except AssertionError:
                say("the time for chaos is over; what is left goes on undisturbed")
        for part in started:
            part.proxy.stop_faults()
        airflow.wait_healthy()
        try:
            wait_for_all(started, BOUND - (time.monotonic() - began))
        finally:  # what is not over by then counts as lost
            verdict = _judge(started, reviewer)
            say(table(started, killer.kills, moments(reviewer.given), verdict))
            for name, found in verdict.problems.items():
                say("\n".join(f"{name}: {each}" for each in found))
    assert verdict.answers, "the reviewer was asked at all"
    assert not verdict.problems, verdict.problems
    written += database_text(airflow) + files_text(airflow) + "".join(each.log() for each in services.values())
    assert all(f"chaos {SEED} {number}" in written for number in range(SIZE)), "the evidence is read at all"
    for service in services.values():
        assert service.token not in written, written[max(0, written.index(service.token) - 300) :][:700]


def _judge(started: list[Part], reviewer: Reviewer) -> Verdict:
    verdict = Verdict()
    for part in started:
        check(part, verdict)
    held = {question: each for part in started if part.reviewed for question, each in answered(part.run).items()}
    verdict.judge_questions(held, reviewer.given)
    return verdict


def _reviewer(airflow: AirflowStack, started: list[Part]) -> Reviewer:
    return Reviewer(own_api(airflow), [part.run for part in started if part.reviewed], SEED)


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - `make chaos` shows it


def _with_triggers(airflow: AirflowStack) -> str | None:
    written = database_text(airflow)
    return written if "trigger arguments:" in written and "crew_chaos" in written else None
