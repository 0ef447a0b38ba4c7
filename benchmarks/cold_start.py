"""Measures how long a crew takes to run from nothing: `python -m benchmarks.cold_start`.

`serve` is started and sent a kickoff once it is ready; a job, `work --max-executions 1`, is started for an execution
that is queued; a warm service has run the crew before. Each crew has three steps that do nothing. Needs PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import requests

from benchmarks.durable_engines import FLOW, SCRIPTED, STEPS, Service
from benchmarks.harness import turns
from benchmarks.harness.turns import Figures
from scripts.find_postgres import WANTED, server_url
from scripts.stack.database import ThrowAwayDatabase

ROUNDS = 5
CREW = {"few": (STEPS, 0.0)}
FIGURES = {
    "livez": "s until `/livez`",
    "readyz": "s until `/readyz`",
    "first": "s until the first execution has completed",
    "cpu": "s of CPU until then",
    "job": "s of a job for one execution",
    "warm": "s of an execution in a warm service",
}


def measured(kind: str, server: str) -> Figures:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = ThrowAwayDatabase(server)
        stack.callback(database.drop)
        service = Service(kind, database.url, folder, CREW)
        with running(service, "serve", "--port", str(service.port)):
            found = cold(service)
        with running(service, "serve", "--port", str(service.port), "--no-work"):
            answered(service.port, "readyz")
            asyncio.run(service.kicked_off("few"))
            return found | job(service)


@contextmanager
def running(service: Service, *words: str) -> Iterator[None]:
    service.launch(*words)
    process = service.process
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def cold(service: Service) -> dict[str, float]:
    began = time.perf_counter()
    found = {name: answered(service.port, name) - began for name in ("livez", "readyz")}
    service.run(1, STEPS)
    found |= {"first": time.perf_counter() - began, "cpu": cpu(service.process.pid)}
    return found | {"warm": min(service.run(1, STEPS) for _ in range(3))}


def answered(port: int, probe: str) -> float:
    """Return when a probe was first answered with 200."""
    while True:
        try:
            if requests.get(f"http://127.0.0.1:{port}/{probe}", timeout=60).status_code == 200:
                return time.perf_counter()
        except requests.ConnectionError:
            pass
        time.sleep(0.01)


def cpu(process: int) -> float:
    """Return the CPU time of a process and its descendants, also of those that have ended."""
    parent = psutil.Process(process)
    return sum(sum(each.cpu_times()[:4]) for each in (parent, *parent.children(recursive=True)))


def job(service: Service) -> dict[str, float]:
    """Run the queued execution in a process that ends after it."""
    began = time.perf_counter()
    service.launch("work", "--max-executions", "1")
    assert service.process.wait(120) == 0
    return {"job": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    server = server_url()
    if not server:
        sys.exit(f"This {WANTED}.")
    found = turns.in_turn({kind: partial(measured, kind, server) for kind in (SCRIPTED, FLOW)}, rounds)
    turns.keep("cold_start", found.of)
    rows = [[name, *(found.shown(case, figure, 2) for case in found.of)] for figure, name in FIGURES.items()]
    print(turns.table(["", *found.of], rows))


if __name__ == "__main__":
    main()
