"""Row S18: the clock of the machine steps by ten minutes, back or forth."""

from __future__ import annotations

import time

import pytest
from crew_client import GATED, Serve

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


@pytest.mark.row("S18")
@pytest.mark.parametrize("dialect", ["spec", "live"])
@pytest.mark.parametrize("step", [-TEN_MINUTES, TEN_MINUTES])
def test_s18_nothing_is_stuck_and_no_limit_is_reached_when_the_clock_steps(
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
def test_s18_a_stop_after_a_step_reports_no_negative_time_and_nothing_is_deleted_early(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    client = serve(GATED, keep_days=1.0)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step)
    assert client.post(f"/stop/{kickoff_id}").status_code == 200
    assert 0 <= client.status(kickoff_id)["execution_time"] < 60
