"""Measures the crew service beside DBOS, a library for durable steps: `python -m benchmarks.durable_engines`.

The work is the same: executions of three steps that do nothing. Ours are tasks of a scripted crew, started and polled
over HTTP, or methods of a CrewAI Flow, which runs in a process of its own; those of DBOS are steps of a workflow in the
process that starts them. Each case has an empty database for each turn. Needs PostgreSQL for half of the cases.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg2

from benchmarks.harness import peers, turns
from benchmarks.harness.turns import Figures
from benchmarks.service_load import TOKEN, ask, request
from benchmarks.traces import ready
from scripts.find_postgres import WANTED, server_url
from scripts.stack.database import ThrowAwayDatabase
from scripts.stack.ports import free_port

BURST, WARM, STEPS, MORE_STEPS, ALONE = 100, 10, 3, 33, 5
WORK = 1.0  # seconds that a step takes in the middle of which the process is killed
ROUNDS = 3
DBOS_APP = Path(__file__).parent / "harness" / "dbos_app.py"
CREWS = {"few": (STEPS, 0.0), "more": (MORE_STEPS, 0.0), "slow": (STEPS, WORK)}
SCRIPTED, FLOW, DBOS = "scripted crew", "CrewAI Flow", "DBOS"
SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
FIGURES = {
    "rate": f"executions per second, {BURST} started at once",
    "step": "ms per step",
    "killed": "s from `kill -9` and a start to the end of the work",
    "memory": "MB",
    "bytes": "bytes stored per execution",
}


class Dbos:
    """A process that runs workflows as it is told over a pipe."""

    def __init__(self, url: str, folder: Path) -> None:
        self._command = [peers.python(peers.DBOS), str(DBOS_APP), url]

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def _told(self, *command: Any) -> Any:
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return self._answer()

    def run(self, count: int, steps: int) -> float:
        return float(self._told("run", count, steps))

    def begin(self) -> str:
        self._told("begin", "killed", STEPS, WORK)
        return "killed"

    def end(self, execution: str) -> None:
        self._told("end", execution)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Service:
    """A crew service that serves the same crew with several numbers of steps.

    :param crews: the number of steps of each, and the seconds that the second one takes
    """

    def __init__(self, kind: str, url: str, folder: Path, crews: Mapping[str, tuple[int, float]] = CREWS) -> None:
        self.port = free_port()
        made = {name: (flow if kind == FLOW else scripted)(folder, name, *given) for name, given in crews.items()}
        self.options = ["--db", url]
        for name, target in made.items():
            self.options += ["--crew", f"{name}={target}"]

    def start(self) -> None:
        self.launch("serve", "--port", str(self.port))
        asyncio.run(ready(self.port))

    def launch(self, command: str, *options: str) -> None:
        """Start a command with the same crews and database."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "crew_service", command, *self.options, *options],
            env={**os.environ, "CREW_SERVICE_TOKEN": TOKEN},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, count: int, steps: int) -> float:
        return asyncio.run(self._run("few" if steps == STEPS else "more", count))

    async def _run(self, crew: str, count: int) -> float:
        began = time.perf_counter()
        started = await asyncio.gather(*(self.kicked_off(crew) for _ in range(count)))
        await self._ended(crew, *started)
        return time.perf_counter() - began

    async def kicked_off(self, crew: str) -> str:
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        _, answer = await ask(*streams, request("POST", f"/crews/{crew}/kickoff", {"inputs": {}}))
        streams[1].close()
        return str(json.loads(answer)["kickoff_id"])

    async def _ended(self, crew: str, *executions: str) -> None:
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        for each in executions:
            while True:
                _, answer = await ask(*streams, request("GET", f"/crews/{crew}/status/{each}"))
                if (state := json.loads(answer)["status"]) == "completed":
                    break
                assert state == "running", answer
                await asyncio.sleep(0.05)
        streams[1].close()

    def begin(self) -> str:
        return asyncio.run(self.kicked_off("slow"))

    def end(self, execution: str) -> None:
        asyncio.run(self._ended("slow", execution))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def scripted(folder: Path, name: str, steps: int, seconds: float) -> str:
    path = folder / f"{name}.json"
    tasks = [{"id": f"step_{number}", "output": "done", "seconds": seconds * (number == 1)} for number in range(steps)]
    path.write_text(json.dumps({"inputs": [], "tasks": tasks}))
    return str(path)


def flow(folder: Path, name: str, steps: int, seconds: float) -> str:
    methods = ["import time", "from crewai.flow.flow import Flow, listen, start", f"class {name.title()}(Flow):"]
    for number in range(steps):
        when = f"listen('step_{number - 1}')" if number else "start()"
        work = f"time.sleep({seconds * (number == 1)})"
        methods += [f"    @{when}", f"    def step_{number}(self):", f"        {work}", "        return 'done'"]
    (folder / f"{name}.py").write_text("\n".join(methods))
    return f"{folder / name}.py:{name.title()}"


def measured(make: Callable[[str, Path], Service | Dbos], where: Callable[[Path], Any]) -> Figures:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url, stored = stack.enter_context(where(folder))
        engine = make(url, folder)
        engine.start()
        stack.callback(engine.close)
        engine.run(WARM, STEPS)
        before = stored()
        rate = BURST / engine.run(BURST, STEPS)
        after, memory = stored(), taken(engine.process.pid)
        few, more = (min(engine.run(1, steps) for _ in range(ALONE)) for steps in (STEPS, MORE_STEPS))
        execution = engine.begin()
        time.sleep(WORK / 2)
        began = time.perf_counter()
        engine.process.kill()
        engine.process.wait()
        engine.start()
        engine.end(execution)
        killed = time.perf_counter() - began
    return {
        "rate": rate,
        "step": (more - few) / (MORE_STEPS - STEPS) * 1000,
        "killed": killed,
        "memory": memory,
        "bytes": (after - before) / BURST,
    }


def taken(process: int) -> float:
    """Return the memory of a process and its descendants in MB; what they share counts once."""
    parent, total = psutil.Process(process), 0
    for each in (parent, *parent.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            total += each.memory_full_info().pss
    return total / 1e6


@contextmanager
def on_sqlite(scheme: str, folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    path = folder / "executions.db"

    def stored() -> int:
        query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        with sqlite3.connect(path) as connection:
            return int(connection.execute(query).fetchone()[0])

    yield f"{scheme}{path}", stored


@contextmanager
def on_postgresql(server: str, folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    database = ThrowAwayDatabase(server)

    def stored() -> int:
        connection = psycopg2.connect(database.url)
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_database_size(current_database())")
            size = int(cursor.fetchone()[0])
        connection.close()
        return size

    try:
        yield database.url, stored
    finally:
        database.drop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    cases: dict[str, Callable[[], Figures]] = {}
    engines = {SCRIPTED: partial(Service, SCRIPTED), FLOW: partial(Service, FLOW), DBOS: Dbos}
    server = server_url()
    for name, make in engines.items():
        cases[f"{name}, {SQLITE}"] = partial(measured, make, partial(on_sqlite, "sqlite:///" if make is Dbos else ""))
        if server:
            cases[f"{name}, {POSTGRESQL}"] = partial(measured, make, partial(on_postgresql, server))
    found = turns.in_turn(cases, rounds)
    turns.keep("durable_engines", found.of)
    print(f"DBOS {peers.version_of(peers.DBOS)}" + ("" if server else f"; PostgreSQL: {WANTED}"))
    digits = {"rate": 1, "step": 1, "killed": 1, "memory": 0, "bytes": 0}
    rows = [[case, *(found.shown(case, figure, digits[figure]) for figure in FIGURES)] for case in found.of]
    print(turns.table(["engine", *FIGURES.values()], rows))


if __name__ == "__main__":
    main()
