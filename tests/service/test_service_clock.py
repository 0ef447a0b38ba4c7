"""Rows S18 and S23: the clock of a machine steps, or is of another day than those of its neighbours."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from crew_client import GATED, PLAIN, Receiver, Serve, eventually
from sqlalchemy import update

from crew_service.engine import retention
from crew_service.storage.database import Database
from crew_service.storage.tables import executions

pytestmark = pytest.mark.slow
TEN_MINUTES = 600.0
SCENARIO = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "first", "seconds": 0.6, "output": "x"},
        {"id": "draft_task", "human_input": True, "output": "Draft on {topic}"},
        {"id": "last", "seconds": 0.6, "output": "All on {topic}"},
    ],
}


@pytest.mark.long
@pytest.mark.row("S18")
@pytest.mark.parametrize("dialect", ["spec", "live"])
@pytest.mark.parametrize("step", [-TEN_MINUTES, TEN_MINUTES])
def test_a_clock_step_leaves_nothing_stuck_and_reaches_no_limit(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, step: float, dialect: str
) -> None:
    client = serve(SCENARIO, workers=1, time_limit=60.0, dialect=dialect)
    pending, completed = {"spec": ("pending", "completed"), "live": ("NOT FOUND", "SUCCESS")}[dialect]
    kickoffs = [client.kickoff(str(number)) for number in range(3)]  # one runs, the others are queued
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step)
    kickoffs.append(client.kickoff("after the step"))
    for kickoff_id in kickoffs:
        client.until(kickoff_id, pending)
    if dialect == "live":
        return  # the task's id is told in its webhook only
    monkeypatch.setattr(time, "time", real)  # the clock is set right again
    for kickoff_id in kickoffs:
        assert client.resume(kickoff_id).status_code == 200
    for kickoff_id in kickoffs:
        assert client.until(kickoff_id, completed)["execution_time"] < 60


@pytest.mark.row("S18")
@pytest.mark.parametrize("step", [-TEN_MINUTES, TEN_MINUTES])
def test_a_clock_step_causes_no_negative_time_or_early_deletion(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    client = serve(GATED, keep_days=1.0)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step)
    assert client.post(f"/stop/{kickoff_id}").status_code == 200
    assert 0 <= client.status(kickoff_id)["execution_time"] < 60


DAYS = 40 * 86400.0
SERVICE = Path(__file__).parents[2] / "service" / "crew_service"


@pytest.fixture
def machine_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock of the machine that is started or asked next, in seconds ahead of the true time."""
    real = time.time
    return lambda ahead: monkeypatch.setattr(time, "time", lambda: real() + ahead)


@pytest.mark.long
@pytest.mark.row("S23")
@pytest.mark.parametrize("days", [DAYS, -DAYS])
def test_a_machines_wrong_clock_deletes_nothing_and_repeats_no_kickoff(
    serve: Serve, postgresql: str, machine_clock: Callable[[float], None], receiver: Receiver, days: float
) -> None:
    body, once = {"inputs": {"topic": "x"}, "crewWebhookUrl": receiver.url + "/crew"}, {"Idempotency-Key": "one"}
    machine_clock(-days)
    first = serve(PLAIN, db=postgresql, keep_days=30.0, token="a-token", webhook_secret="secret")
    old = first.kickoff()
    kickoff_id = first.post("/kickoff", body, headers=once).json()["kickoff_id"]
    for each in (old, kickoff_id):
        first.until(each, "completed")
    eventually(lambda: receiver.taken, "the webhook")
    with Database(postgresql).writing() as connection:
        aged = {"aged_from": executions.c.aged_from - DAYS}
        connection.execute(update(executions).where(executions.c.id == old).values(aged))
    machine_clock(days)
    second = serve(PLAIN, db=postgresql, keep_days=30.0, token="a-token", webhook_secret="secret")
    again = second.kickoff()
    second.until(again, "completed")
    eventually(lambda: second.get(f"/status/{old}").status_code == 404, "the search for what is old")
    assert first.status(kickoff_id)["status"] == second.status(kickoff_id)["status"] == "completed"
    assert second.post("/kickoff", body, headers=once).json() == {"kickoff_id": kickoff_id}
    assert [each["kickoff_id"] for each in second.get("/executions").json()["executions"]] == [again, kickoff_id]
    machine_clock(0.0)
    assert abs(int(receiver.taken[0][1]["X-CrewAI-Timestamp"]) - time.time()) < 300


@pytest.mark.row("S23")
def test_an_end_by_a_neighbours_clock_counts_from_when_seen(serve: Serve, postgresql: str) -> None:
    client = serve(PLAIN, db=postgresql, keep_days=1.0)
    client.until(client.kickoff(), "completed")
    database = Database(postgresql)
    with database.writing() as connection:  # as the release before this one does, on a machine 40 days behind
        connection.execute(update(executions).values(ended_at=executions.c.ended_at - DAYS, aged_from=None))
    now = database.now()
    retention.note_ends(database, now=now)
    assert retention.forget_old(database, before=now - 86400) == 0
    assert retention.forget_old(database, before=now + 1) == 1
    database.close()


def test_the_clock_of_the_machine_is_asked_in_one_place() -> None:
    """Moments that are stored or compared are the database's; a duration within one process may be the machine's.

    So is the age of what a crew remembers (container.py), because CrewAI writes those times.
    """
    asked = re.compile(r"time\.time\(\)|datetime\.now|utcnow")
    found = {path.name for path in SERVICE.rglob("*.py") if asked.search(path.read_text())}
    assert found == {"clock.py", "0004_webhook_queues.py", "nested_tasks.py", "crew_run.py", "container.py"}
