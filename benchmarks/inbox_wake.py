"""Measures the time from a webhook until a task has left `deferred`: `python benchmarks/inbox_wake.py [waits]`.

Uses real Airflow processes, and the crew service in its live dialect, in which only a webhook announces a question to a
person. The clock starts when a crew's task asks the person, so the time includes the delivery by the service.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from crew_service.engine.crew import Job, PendingReview, Report, TaskInfo, TaskStarted
from crew_service.local import running_service
from scripts.find_postgres import server_url
from scripts.stack import AirflowStack, wait_until
from tests.stand_in_crew import StandInCrew

HERE = Path(__file__).parent
TARGET = 2.0  # seconds, p95
LOOK = 0.02
STATES = sa.text("SELECT map_index, state FROM task_instance WHERE task_id = 'wait'")


class HeldCrew(StandInCrew):
    """A crew whose task asks for a review as soon as it is released."""

    inputs = ("number",)
    tasks = (TaskInfo("draft", "Writer", human_input=True),)

    def __init__(self, size: int) -> None:
        self.gates = [threading.Event() for _ in range(size)]

    def run(self, job: Job, report: Report) -> PendingReview:
        number = int(job.inputs["number"])
        report(TaskStarted("draft", "Writer"))
        while not self.gates[number].wait(1.0):
            job.cancelled.raise_if_set()
        return PendingReview("draft", f"Draft of crew {number}.", "Writer")


class Watcher:
    """Records when each wait leaves `deferred`, by polling Airflow's database."""

    def __init__(self, stack: AirflowStack) -> None:
        self._engine = sa.create_engine(stack.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
        self.left: dict[int, float] = {}

    def states(self) -> dict[int, str]:
        with self._engine.connect() as connection:
            return {row.map_index: row.state for row in connection.execute(STATES)}

    def deferred(self) -> int:
        return sum(state == "deferred" for state in self.states().values())

    def watch(self, indexes: Iterable[int], timeout: float) -> None:
        """Poll until all of them have left `deferred`."""
        missing, deadline = set(indexes), time.monotonic() + timeout
        while missing and time.monotonic() < deadline:
            states, now = self.states(), time.monotonic()
            for index in [each for each in missing if states[each] != "deferred"]:
                self.left[index] = now
                missing.discard(index)
            time.sleep(LOOK)


def measure(watcher: Watcher, crew: HeldCrew, indexes: list[int]) -> list[float]:
    """Release these crews all at once; return the seconds until each task has left `deferred`."""
    begun = time.monotonic()
    for index in indexes:
        crew.gates[index].set()
    watcher.watch(indexes, 120)
    return [watcher.left.get(index, float("inf")) - begun for index in indexes]


def row(name: str, seconds: list[float]) -> str:
    ranked = sorted(seconds)
    p95 = ranked[max(0, round(0.95 * len(ranked)) - 1)]
    figures = (statistics.median(ranked), p95, ranked[-1])
    return f"| {name:<34} | {len(ranked):>5} | " + " | ".join(f"{each:>7.2f}" for each in figures) + " |"


def benchmark(size: int) -> list[tuple[str, list[float]]]:
    crew = HeldCrew(size)
    with (
        running_service(crew=crew, dialect="live", workers=size + 2) as service,
        AirflowStack(dags=[HERE / "airflow_dags"], postgres=server_url()) as stack,
    ):
        inbox = json.dumps({"inbox_url": f"{stack.url}/crew-inbox"})
        fields = {"conn_type": "crew", "host": service.url, "password": service.token}
        stack.api.add_connection("crew_default", **fields, extra=inbox)
        stack.api.trigger("inbox_wake", {"waits": size})
        watcher = Watcher(stack)
        wait_until(lambda: watcher.deferred() == size, f"{size} deferred tasks", patience=1800, pause=1.0)
        time.sleep(5)  # for the last one to settle
        single = [second for index in range(size // 2) for second in measure(watcher, crew, [index])]
        return [
            ("one after the other", single),
            ("all others at once", measure(watcher, crew, [*range(size // 2, size)])),
        ]


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    rows = benchmark(size)
    together = [second for _, seconds in rows for second in seconds]
    database = "PostgreSQL" if server_url() else "SQLite"
    print(f"\nAirflow {version('apache-airflow')} on {database}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"\n| {f'{size} executions wait for a person':<34} | waits | p50 (s) | p95 (s) | max (s) |")
    print("|" + "|".join("-" * width for width in (36, 7, 9, 9, 9)) + "|")
    for name, seconds in [*rows, ("together", together)]:
        print(row(name, seconds))
    worst = sorted(together)[max(0, round(0.95 * len(together)) - 1)]
    print(f"\np95 is {worst:.2f} s; the target is under {TARGET:.0f} s")
    sys.exit(worst >= TARGET)


if __name__ == "__main__":
    main()
