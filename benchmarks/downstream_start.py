"""Measures the time from a crew's end to the next task's start: `python -m benchmarks.downstream_start [turns]`.

Uses real Airflow processes and the crew service, with a poll every 5 s, and with a webhook and an interval of 10
minutes. Crews that take 2 s show the cost of a deferral that has only just begun.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.turns import Turns, in_turn, keep, table
from crew_service.engine.crew import Completed, Job, Report, TaskDone, TaskInfo
from crew_service.local import LocalService, running_service
from scripts.find_postgres import server_url
from scripts.stack import AirflowStack
from tests.stand_in_crew import StandInCrew

HERE = Path(__file__).parent
CASES = {
    "polled every 5 s, crew of 25 s": ("crew_polled", 25.0),
    "woken by webhook, crew of 25 s": ("crew_woken", 25.0),
    "polled every 5 s, crew of 2 s": ("crew_polled", 2.0),
    "polled in the worker first, crew of 2 s": ("crew_in_worker", 2.0),
    "woken by webhook, crew of 2 s": ("crew_woken", 2.0),
}


class TimedCrew(StandInCrew):
    """Works for as long as its inputs specify, and records when it began and ended."""

    inputs = ("seconds", "number")
    tasks = (TaskInfo("write", "Writer"),)

    def __init__(self) -> None:
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def run(self, job: Job, report: Report) -> Completed:
        number = str(job.inputs["number"])
        self.began[number] = time.time()
        job.cancelled.wait(float(job.inputs["seconds"]))
        job.cancelled.raise_if_set()
        report(TaskDone({"task_id": "write", "agent": "Writer", "output": "A text.", "execution_time": 1.0}))
        self.ended[number] = time.time()
        return Completed("A text.")


def one(stack: AirflowStack, crew: TimedCrew, dag_id: str, seconds: float) -> dict[str, float]:
    """Run a crew once; return the seconds from its start and from its end to the start of the task after it."""
    number = str(len(crew.began))
    run = stack.api.trigger(dag_id, {"seconds": str(seconds), "number": number})
    run.wait_for("success")
    started = datetime.fromisoformat(run.task("after")["start_date"].replace("Z", "+00:00")).timestamp()
    return {"since its end": started - crew.ended[number], "since its start": started - crew.began[number]}


def measure(stack: AirflowStack, service: LocalService, crew: TimedCrew, turns: int) -> Turns:
    inbox = json.dumps({"inbox_url": f"{stack.url}/crew-inbox"})
    stack.api.add_connection("crew_default", conn_type="crew", host=service.url, password=service.token, extra=inbox)
    cases: dict[str, Callable[[], dict[str, float]]] = {
        name: (lambda dag_id=dag_id, seconds=seconds: one(stack, crew, dag_id, seconds))
        for name, (dag_id, seconds) in CASES.items()
    }
    return in_turn(cases, turns)


def run(turns: int = 5) -> str:
    """Measure, save the results as JSON, and return the table."""
    crew, postgres = TimedCrew(), server_url()
    with (
        running_service(crew=crew, workers=2) as service,
        AirflowStack(dags=[HERE / "airflow_dags"], postgres=postgres) as stack,
    ):
        found = measure(stack, service, crew, turns)
    keep("downstream_start", found.of)
    head = ["", "s from the crew's end", "s from the crew's start"]
    rows = [
        [name, *(found.shown(name, figure, 1) for figure in ("since its end", "since its start"))] for name in CASES
    ]
    about = f"Airflow {version('apache-airflow')} on {'PostgreSQL' if postgres else 'SQLite'}, {turns} turns"
    return f"{about}\n\n{table(head, rows)}"


if __name__ == "__main__":
    print(run(*(int(each) for each in sys.argv[1:2])))
