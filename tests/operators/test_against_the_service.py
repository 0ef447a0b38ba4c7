"""Against the real crew service, in both dialects, through a proxy that disturbs every other call."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.proxy import ALL_FAULTS, FaultProxy
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.operators.crew import CrewKickoffOperator

local = pytest.importorskip("crew_service.local", reason="needs the crew service")

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.slow]
SCENARIO = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "notes_task", "agent": "Researcher", "seconds": 0.1, "output": "Notes"},
        {"id": "only_task", "agent": "Writer", "seconds": 0.1, "output": "All on {topic}"},
    ],
}
FAULTS = [fault for fault in ALL_FAULTS if fault.name != "silence"]


@pytest.mark.row("N1", "N7", "N11")
@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_n11_every_execution_is_started_once_and_ends_with_its_own_result(
    connect: Connect, tmp_path: Path, dialect: str, deferrable: bool
) -> None:
    db = tmp_path / "service.db"
    with (
        local.running_service(scenario=SCENARIO, dialect=dialect, db=db) as service,
        FaultProxy(service.url, seed=20261120, rate=0.5, faults=FAULTS) as proxy,
    ):
        connect(proxy.url, token=service.token, idempotency_keys=True)
        records = [_until_it_succeeds(f"topic {number}", deferrable) for number in range(4)]
        disturbed = {each.row for each in proxy.injected}
    assert [record["output"] for record in records] == [f"All on topic {number}" for number in range(4)]
    with closing(sqlite3.connect(db)) as database:
        assert database.execute("select count(*) from executions").fetchone() == (4,)
    assert len(disturbed) >= 3


def _until_it_succeeds(topic: str, deferrable: bool, tries: int = 15) -> Any:
    """Try again as Airflow does, with what the earlier tries have left behind."""
    operator = CrewKickoffOperator(
        task_id="kickoff",
        inputs={"topic": topic},
        wait_for_completion=True,
        deferrable=deferrable,
        poll_interval=0.05,
        on_unknown_outcome="fail",
    )
    task_run = TaskRun(retries=tries)
    for _ in range(tries):
        try:
            return run(operator, task_run)
        except AirflowException:
            task_run.retry()
    raise AssertionError(f"{topic} did not succeed within {tries} tries")


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_a_retry_goes_on_from_the_task_that_failed(
    connect: Connect, tmp_path: Path, dialect: str, deferrable: bool
) -> None:
    def service(**last: Any) -> Any:
        notes, last_task = SCENARIO["tasks"]
        tasks = [{**notes, "tokens": 100}, {**last_task, "tokens": 10, **last}]
        return local.running_service(scenario={"tasks": tasks}, dialect=dialect, db=tmp_path / "service.db")

    operator = CrewKickoffOperator(
        **{"task_id": "kickoff", "inputs": {"topic": "tea"}, "wait_for_completion": True, "deferrable": deferrable},
        **{"poll_interval": 0.05, "max_total_tokens": 115},
    )
    task_run = TaskRun(retries=5)
    with service(error="no ink") as failing:
        connect(failing.url, token=failing.token, idempotency_keys=True)
        with pytest.raises(AirflowException, match="no ink"):
            run(operator, task_run)
    with service() as repaired:
        connect(repaired.url, token=repaired.token, idempotency_keys=True)
        record = run(operator, task_run.retry())
    assert record["output"] == "All on tea"
    with closing(sqlite3.connect(tmp_path / "service.db")) as database:
        found = database.execute("select id, continued_from, tokens from executions order by created_at").fetchall()
    (first, none, before), (_, continued_from, after) = found
    assert (none, before, continued_from, after) == (None, 100, first, 10)


def test_the_first_run_of_the_quickstart_prints_no_warning(
    connect: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with local.running_service(db=tmp_path / "service.db") as service:
        connect(service.url, token=service.token)
        operator = CrewKickoffOperator(
            task_id="article", inputs={"topic": "tea", "review": "no"}, wait_for_completion=True, poll_interval=0.05
        )
        record = run(operator, TaskRun())
    assert record["state"] == "completed"
    said = "".join(capsys.readouterr()) + caplog.text  # where Airflow logs to depends on its version
    assert "Started execution" in said
    assert "did not ask for" not in said
