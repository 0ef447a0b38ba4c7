"""Chaos: many executions through proxies that disturb at random, while workers, triggerers and the service are killed.

What is drawn follows from one seed; when it meets whom does not, since real processes are at work.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psutil
from faults.proxy import FaultProxy
from held import looks

from scripts.stack import AirflowStack, CrewService, DagRun, wait_until

FINISHED = ("success", "failed")
UNKNOWN = "A second kickoff could run the crew twice, so none is sent"
CREW = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research", "agent": "Researcher", "seconds": 3.0, "output": "Notes on {topic}."},
        {"id": "write", "agent": "Writer", "seconds": 3.0, "output": "A text on {topic}."},
    ],
}
# How the executions are shared out: the DAG, the dialect, whether the service honours idempotency keys, the share.
SHARES = (
    ("chaos_deferred", "spec", True, 0.35),
    ("chaos_deferred", "live", True, 0.25),
    ("chaos_deferred", "live", False, 0.25),
    ("chaos_worker", "spec", True, 0.15),
)
PAUSE_BETWEEN_KILLS = (6.0, 14.0)
KILLS = {"A1/A2 worker killed": 6, "A3 triggerer killed": 2, "S1 service killed": 1}


Services = dict[str, CrewService]  # by dialect


@dataclass
class Part:
    """A DAG run with its share of the topics, and the proxy that its traffic takes."""

    run: DagRun
    topics: list[str]
    service: CrewService
    dialect: str
    with_keys: bool
    proxy: FaultProxy
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return f"{self.run.dag_id}, {self.dialect} dialect, {'with' if self.with_keys else 'without'} idempotency keys"


class Killer:
    """Kills at random, and starts again what does not start by itself, until it is told to stop."""

    def __init__(self, airflow: AirflowStack, services: Services, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._airflow, self._services, self._random = airflow, list(services.values()), Random(seed)
        self._error: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(120)
        if self._error:
            raise self._error

    def _work(self) -> None:
        try:
            self._kill_until_over()
        except Exception as error:
            self._error = error

    def _kill_until_over(self) -> None:
        first = self._random.sample(list(KILLS), len(KILLS))  # a short run sees each kind too
        while not self._over.wait(self._random.uniform(*PAUSE_BETWEEN_KILLS)):
            what = first.pop() if first else self._random.choices(list(KILLS), list(KILLS.values()))[0]
            if self._kill(what):
                self.kills[what] += 1

    def _kill(self, what: str) -> bool:
        if "triggerer" in what:
            self._airflow.kill("triggerer")
            self._airflow.start("triggerer")
        elif "service" in what:
            service = self._random.choice(self._services)
            service.kill()
            service.start()
        else:
            return self._kill_worker()
        return True

    def _kill_worker(self) -> bool:
        running = [each for each in self._airflow.group.components["scheduler"].processes() if _is_task(each)]
        if not running:
            return False
        task = self._random.choice(running)
        try:
            supervisor = task.parent()
            task.kill()
            if supervisor:
                supervisor.kill()
        except psutil.NoSuchProcess:
            return False
        return True


def _is_task(process: psutil.Process) -> bool:
    """Whether this runs a task: such a process is named after it, and its parent is the worker that supervises it."""
    try:
        return " ".join(process.cmdline()).startswith("airflow worker -- 0")
    except psutil.Error:
        return False


@contextmanager
def parts(airflow: AirflowStack, services: Services, size: int, seed: int, rate: float) -> Iterator[list[Part]]:
    """Start all runs, each through a proxy of its own."""
    with ExitStack() as stack:
        started, topics = [], [f"chaos {seed} {number}" for number in range(size)]
        for number, (dag_id, dialect, with_keys, share) in enumerate(SHARES):
            service = services[dialect]
            proxy = stack.enter_context(FaultProxy(service.url, seed=seed + number, rate=rate))
            conn_id = f"crew_chaos_{seed}_{number}"
            extra = {"timeout": 5, "kickoff_timeout": 30, "idempotency_keys": with_keys}
            connection = {**service.connection, "host": proxy.url, "extra": json.dumps(extra)}
            airflow.api.add_connection(conn_id, **connection)
            last = number == len(SHARES) - 1
            mine = [topics.pop() for _ in range(len(topics) if last else round(size * share))]
            run = airflow.api.trigger(dag_id, {"crew": conn_id, "topics": mine})
            started.append(Part(run, mine, service, dialect, with_keys, proxy))
        yield started


def executions(service: CrewService) -> list[dict[str, Any]]:
    """Return the service's own list."""
    with sqlite3.connect(service.folder / "service.db") as database:
        rows = database.execute("SELECT id, state, inputs, meta FROM executions").fetchall()
    return [{"id": i, "state": s, "topic": json.loads(n)["topic"], "meta": json.loads(m)} for i, s, n, m in rows]


def check(part: Part) -> None:
    """Compare every task of a run with the service's list: once with keys, never twice without, and both agree."""
    listed = [each for each in executions(part.service) if each["meta"]["airflow"]["run_id"] == part.run.run_id]
    for index, task in _crews(part.run).items():
        mine = [each for each in listed if each["meta"]["airflow"]["map_index"] == index]
        who = f"{part.name}, map index {index}, {task['state']}"
        assert len(mine) <= 1, f"{who}: started {len(mine)} times"
        if task["state"] == "success":
            _agree(part, index, mine[0])
            part.outcomes["success"] += 1
            continue
        assert not part.with_keys, f"{who}: {part.run.log('crew', task['try_number'], index)[-3000:]}"
        assert UNKNOWN in part.run.log("crew", task["try_number"], index), who
        part.outcomes[f"outcome unknown, executions: {len(mine)}"] += 1
    assert part.outcomes.total() == len(part.topics)


def _crews(run: DagRun) -> dict[int, dict[str, Any]]:
    return {task["map_index"]: task for task in run.tasks() if task["task_id"] == "crew"}


def _agree(part: Part, index: int, execution: dict[str, Any]) -> None:
    record = part.run.xcom("crew", map_index=index)
    assert execution["state"] == "completed"
    assert record["execution_id"] == execution["id"]
    assert record["output"] == f"A text on {execution['topic']}."
    assert execution["topic"] == part.topics[index]


def wait_for_all(started: list[Part], seconds: float) -> None:
    def over() -> bool:
        return all(part.run.state in FINISHED for part in started)

    wait_until(over, seconds, "the end of all runs", pause=2)


def table(started: list[Part], killer: Killer) -> str:
    """Return what was injected and what came of it, as Markdown."""
    faults = Counter((each.row, each.call, each.name) for part in started for each in part.proxy.injected)
    lines = ["| fault | times |", "|---|---|"]
    lines += [f"| {row} {call}: {name} | {times} |" for (row, call, name), times in sorted(faults.items())]
    lines += [f"| {what} | {times} |" for what, times in sorted(killer.kills.items())]
    lines += ["", f"{sum(looks(part.proxy) for part in started)} looks at the status", ""]
    lines += ["| run | outcome | tasks |", "|---|---|---|"]
    lines += [f"| {part.name} | {what} | {n} |" for part in started for what, n in sorted(part.outcomes.items())]
    return "\n".join(lines)
