"""`make guard`: fail if a performance ratio is more than 10% worse than the recorded one; takes about a minute.

It compares the CPU time of a poll with that of the smallest trigger, a DAG file with one of bare operators, a status
request with the smallest route that reads a database, and the memory of a crew service with large outputs with that of
one with small outputs. The two sides alternate, and a ratio is the median of the ratios of adjacent turns, so that the
load of the machine affects both: the speed of a shared core can halve within a second, so many short turns say more
than few long ones. The recorded ratios are in `kept_ratios.json`; `--keep` replaces them with the measured ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import server
from benchmarks.service_load import Side, ask, request, started
from scripts.stack.ports import free_port

KEPT = Path(__file__).with_name("kept_ratios.json")
TURNS, SHORT_TURNS = 7, 50
SHORT = 0.1  # seconds
TRIES = 3
WORSE = 1.1
Pair = tuple[Callable[[], float], Callable[[], float]]  # ours and the other side; each call is one measurement

WAITS, INTERVAL, SETTLE, SECONDS = 120, 0.06, 0.3, 0.7  # the interval is not below our minimum
TASKS = 300
LARGE = {"inputs": [], "tasks": [{"id": "write", "output": "x" * 2_000_000}]}
SMALL = {"inputs": [], "tasks": [{"id": "write", "output": "x" * 1000}]}
# It reads a database too, since the speed of a machine's memory counts most there: beside a route that only returns a
# constant, the ratio of the same code differs by a third between machines.
STORED = """
import sys, uvicorn
from fastapi import FastAPI
from sqlalchemy import JSON, Column, MetaData, String, Table, bindparam, create_engine, select
engine = create_engine(f"sqlite:///{sys.argv[2]}")
executions = Table("e", MetaData(), Column("id", String, primary_key=True), Column("body", JSON))
executions.create(engine)
with engine.begin() as connection:
    body = {"status": "running", "current_task": "t", "progress": {"completed_tasks": 1, "total_tasks": 3}}
    connection.execute(executions.insert(), {"id": "x", "body": body})
query = select(executions).where(executions.c.id == bindparam("key"))
app = FastAPI()
@app.get("/status/{kickoff_id}")
async def status(kickoff_id: str):
    with engine.connect() as connection:
        return connection.execute(query, {"key": kickoff_id}).one().body
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
"""
EXECUTIONS = 2  # per turn


@contextmanager
def poll(folder: Path) -> Iterator[Pair]:
    """Measure the CPU time of a poll, in one event loop that runs one kind of wait at a time."""
    import aiohttp

    from benchmarks.harness import kinds, one_loop

    async def measured(kind: str, url: str) -> float:
        async with aiohttp.ClientSession(url) as session:
            waits = one_loop.start(kind, WAITS, INTERVAL, url)
            await asyncio.sleep(SETTLE)
            had, began = await one_loop.polls(session), time.process_time()
            has = had
            while has == had:  # a machine that stood still for the time is measured once it goes on
                await asyncio.sleep(SECONDS)
                used, has = time.process_time() - began, await one_loop.polls(session)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await kinds.close()
        return used / (has - had)

    with server.running() as where, asyncio.Runner() as runner:
        os.environ |= kinds.connections(where.url)
        yield (
            lambda: runner.run(measured(kinds.OURS, where.url)),
            lambda: runner.run(measured(kinds.SMALLEST, where.url)),
        )


@contextmanager
def dag_file(folder: Path) -> Iterator[Pair]:
    """Measure the CPU time of creating and serializing a DAG."""
    from benchmarks import parsing

    def maker(kind: str) -> Callable[[int], Any]:
        names: dict[str, Any] = {}
        exec(parsing.AIRFLOW + parsing.TASKS[kind] + parsing.MADE, names)
        names["made"](5)
        return names["made"]

    def measured(made: Callable[[int], Any]) -> float:
        began = time.process_time()
        made(TASKS // 2)
        return time.process_time() - began

    yield partial(measured, maker("crew operators")), partial(measured, maker("bare operators"))


@contextmanager
def status(folder: Path) -> Iterator[Pair]:
    """Measure the CPU time that the service needs for a response."""
    from benchmarks.traces import serving

    def measured(process: int, port: int, path: str) -> float:
        side = Side(process, port, [request("GET", path)])
        asyncio.run(side.turn(SHORT))
        return side.cpu / side.answers

    (folder / "stored.py").write_text(STORED)
    smallest = free_port()
    command = (str(folder / "stored.py"), str(smallest), str(folder / "stored.db"))
    with serving(folder, SMALL) as (process, port), started(*command, port=smallest) as other:
        execution = asyncio.run(_kick_off(port))
        yield partial(measured, process, port, f"/status/{execution}"), partial(measured, other, smallest, "/status/x")


@contextmanager
def memory(folder: Path) -> Iterator[Pair]:
    """Measure the peak memory of a service whose webhook receiver never responds."""
    from benchmarks.traces import serving

    def measured(process: int, port: int, receiver: str) -> float:
        for _ in range(EXECUTIONS):
            asyncio.run(_finish(port, receiver))
        return _peak(process)

    with (
        server.running(server.Options(dead=True)) as silent,
        serving(folder, LARGE) as large,
        serving(folder, SMALL) as small,
    ):
        yield partial(measured, *large, silent.url), partial(measured, *small, silent.url)


async def _kick_off(port: int, **body: Any) -> str:
    streams = await asyncio.open_connection("127.0.0.1", port)
    _, answer = await ask(*streams, request("POST", "/kickoff", {"inputs": {}, **body}))
    streams[1].close()
    return str(json.loads(answer)["kickoff_id"])


async def _finish(port: int, receiver: str) -> None:
    """Kick off an execution and poll it until it has completed."""
    execution = await _kick_off(port, crewWebhookUrl=f"{receiver}/crew", taskWebhookUrl=f"{receiver}/task")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        streams = await asyncio.open_connection("127.0.0.1", port)
        _, answer = await ask(*streams, request("GET", f"/status/{execution}"))
        streams[1].close()
        if json.loads(answer)["status"] == "completed":
            return
        await asyncio.sleep(0.02)
    raise TimeoutError(f"execution {execution}")


def _peak(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM")).split()[1])


RATIOS: Mapping[str, tuple[Callable[[Path], Any], int]] = {
    "poll beside the smallest trigger": (poll, TURNS),
    "DAG file beside bare operators": (dag_file, TURNS),
    "status beside the smallest read": (status, SHORT_TURNS),
    "memory of large outputs beside small ones": (memory, TURNS),
}


def ratio(measure: Callable[[Path], Any], turns: int) -> float:
    """Return the median ratio of adjacent turns."""
    with tempfile.TemporaryDirectory() as folder, measure(Path(folder)) as (ours, other):
        return statistics.median(ours() / other() for _ in range(turns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="record the measured ratios")
    keep = parser.parse_args().keep
    kept = json.loads(KEPT.read_text())
    found: dict[str, float] = {}
    for name, measured in RATIOS.items():
        began = time.monotonic()
        found[name] = ratio(*measured)
        for _ in range(0 if keep else TRIES - 1):  # a disturbance is temporary; a regression is not
            if found[name] > kept[name] * WORSE:
                found[name] = min(found[name], ratio(*measured))
        took = time.monotonic() - began
        print(f"{name}: {found[name]:.2f}, recorded: {kept[name]:.2f} ({took:.0f} s)", flush=True)
    worse = [name for name in RATIOS if found[name] > kept[name] * WORSE]
    if keep:
        KEPT.write_text(json.dumps({name: round(each, 2) for name, each in found.items()}, indent=1) + "\n")
    elif worse:
        sys.exit(f"More than 10% worse than recorded in {KEPT.name}: {', '.join(worse)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        os.environ |= {"AIRFLOW_HOME": home, "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING"}
        main()
