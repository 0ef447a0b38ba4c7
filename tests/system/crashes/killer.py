"""Kills workers, triggerers and services at random, and deletes connections for a moment.

It also clears neighbours of the tasks at work, and lets gateways begin to refuse polls of many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import psutil
from chaos import Part, own_api
from faults.lagging import REFUSALS

from scripts.stack import AirflowStack, DagRun
from scripts.stack.background import BackgroundWork
from scripts.stack.runs import FINISHED

PAUSE_BETWEEN_KILLS = (6.0, 14.0)
AWAY = (2.0, 6.0)
NEIGHBOUR = "neighbour"  # a task of each DAG, which does nothing
KILLS = {
    "A1/A2 worker killed": 6,
    "A3 triggerer killed": 2,
    "S1 service killed": 1,
    "N18 connection not found": 2,
    "N27 neighbour cleared": 2,
    "N28 gateway begins to refuse polls of many": 1,
}


class Killer(BackgroundWork):
    """Kills at random, and starts again what does not start by itself."""

    def __init__(self, airflow: AirflowStack, started: Sequence[Part], seed: int) -> None:
        super().__init__()
        self.kills: Counter[str] = Counter()
        self._airflow, self._parts, self._random = airflow, started, Random(seed)
        self._api = own_api(airflow)

    def work(self) -> None:
        first = self._random.sample(list(KILLS), len(KILLS))  # a short run sees each kind too
        while not self.over.wait(self._random.uniform(*PAUSE_BETWEEN_KILLS)):
            what = first.pop() if first else self._random.choices(list(KILLS), list(KILLS.values()))[0]
            if self._kill(what):
                self.kills[what] += 1

    def _kill(self, what: str) -> bool:
        if "triggerer" in what:
            self._airflow.kill("triggerer")
            self._airflow.start("triggerer")
        elif "service" in what:
            service = self._random.choice(self._parts).service
            service.kill()
            service.start()
        elif "connection" in what:
            self._take_away(self._random.choice(self._parts))
        elif "gateway" in what:
            self._random.choice(self._parts).proxy.refuse_polls_of_many(self._random.choice(REFUSALS))
        elif "neighbour" in what:
            return self._clear_neighbour(self._random.choice(self._parts).run)
        else:
            return self._kill_worker()
        return True

    def _clear_neighbour(self, run: DagRun) -> bool:
        """Clear it where it has ended and its run has not: the other tasks of the run go on."""
        mine = DagRun(self._api, run.dag_id, run.run_id)
        if mine.state in FINISHED or mine.task(NEIGHBOUR)["state"] not in FINISHED:
            return False
        mine.clear(NEIGHBOUR)
        return True

    def _take_away(self, part: Part) -> None:
        """Let Airflow answer "not found", as it also does while a secrets back end is away."""
        self._api.call("DELETE", f"connections/{part.conn_id}")
        self.over.wait(self._random.uniform(*AWAY))
        self._api.add_connection(part.conn_id, **part.connection)

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
