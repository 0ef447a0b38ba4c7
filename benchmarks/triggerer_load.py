"""Many waits in one event loop: `python benchmarks/triggerer_load.py`. Prints the table of triggerer_load.md.

Each row is a process of its own that runs so many triggers, or so many bare loops of aiohttp that only ask and sleep,
against a server in another process that answers `RUNNING` at once. About 1,000 looks a second in every row.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from airflow_crew_provider.triggers.crew import CrewStatusTrigger

SIZES = ((1_000, 1.0), (10_000, 10.0))  # waits, poll_interval in seconds
SECONDS = 30.0  # measured, after every wait has looked twice
TICK = 0.005
STATUS = {
    "state": "RUNNING",
    "status": "Task is Running",
    "result": None,
    "result_json": None,
    "progress": {"unit": "task", "completed": 1, "total": 2, "remaining": 1, "current": "summary_task"},
}


@dataclass
class Figures:
    """What one process measured; times in milliseconds, memory in MiB."""

    looks_per_second: float
    lag_p50: float
    lag_p99: float
    lag_max: float
    cpu_percent: float
    sockets: int
    memory: float
    start_lag: float
    """The longest stop of the loop while all waits began at once."""


class Server(asyncio.Protocol):
    """Answers every look with the same status, as cheaply as can be, and `/count` with their number."""

    looks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /count"):
            return self._transport.write(answer(str(Server.looks)))
        Server.looks += 1
        return self._transport.write(ANSWER)


def answer(body: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


ANSWER = answer(json.dumps(STATUS))


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Lag:
    """How late the loop comes back to a task that wants to go on."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    async def sample(self) -> None:
        while True:
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            self.samples.append((time.perf_counter() - due) * 1000)


async def bare(session: aiohttp.ClientSession, number: int, interval: float) -> None:
    """The least that a wait can be."""
    await asyncio.sleep(interval * random.random())
    while True:
        async with session.get(f"/status/k-{number}", headers={"Authorization": "Bearer t"}) as response:
            await response.json()
        await asyncio.sleep(interval * random.uniform(1.0, 1.2))


async def trigger(session: aiohttp.ClientSession, number: int, interval: float) -> None:
    """What a triggerer that was restarted takes up: the stored form of a wait that began elsewhere."""
    _, stored = CrewStatusTrigger(f"k-{number}", poll_interval=interval, not_before=1.0).serialize()
    async for event in CrewStatusTrigger(**stored).run():
        raise AssertionError(f"no wait ends here: {event}")


KINDS = {"bare": bare, "triggers": trigger}


async def run(kind: str, count: int, interval: float, url: str) -> Figures:
    me, lag = psutil.Process(), Lag()
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=100)) as session:

        async def looks() -> int:
            async with session.get("/count") as response:
                return int(await response.text())

        before, first = me.memory_info().rss, await looks()
        sampling = asyncio.create_task(lag.sample())
        waits = [asyncio.create_task(KINDS[kind](session, number, interval)) for number in range(count)]
        while await looks() - first < 2 * count:  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.5)
        start_lag = max(lag.samples)
        lag.samples.clear()
        began, had, used = time.perf_counter(), await looks(), me.cpu_times()
        await asyncio.sleep(SECONDS)
        took, more, now = time.perf_counter() - began, await looks() - had, me.cpu_times()
        percentiles = statistics.quantiles(lag.samples, n=100)
        sockets = sum(each.status == psutil.CONN_ESTABLISHED for each in me.net_connections("tcp"))
        assert not any(task.done() for task in waits)
        memory = (me.memory_info().rss - before) / 2**20
        for task in (sampling, *waits):
            task.cancel()
        await asyncio.gather(sampling, *waits, return_exceptions=True)
    return Figures(
        looks_per_second=more / took,
        lag_p50=percentiles[49],
        lag_p99=percentiles[98],
        lag_max=max(lag.samples),
        cpu_percent=100 * (now.user + now.system - used.user - used.system) / took,
        sockets=sockets,
        memory=memory,
        start_lag=start_lag,
    )


@contextmanager
def server() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait(30)


def measured(kind: str, count: int, interval: float, url: str, home: Path) -> Figures:
    connection = json.dumps({"conn_type": "crew", "host": url, "password": "benchmark-token"})
    env = {**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW_CONN_CREW_DEFAULT": connection}
    env["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"
    command = [sys.executable, __file__, "run", kind, str(count), str(interval), url]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def table(rows: list[tuple[str, int, Figures]]) -> str:
    lines = [
        "| waits | looks | loop lag p50, p99, longest | CPU | sockets | memory | longest stop at the start |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, count, f in rows:
        lag = f"{f.lag_p50:.1f}, **{f.lag_p99:.1f}**, {f.lag_max:.1f} ms"
        memory = f"{f.memory:.0f} MiB, {f.memory / count * 1024:.1f} KiB each"
        lines.append(
            f"| {count:,} {kind} | {f.looks_per_second:.0f}/s | {lag} | {f.cpu_percent:.0f} % "
            f"| {f.sockets} | {memory} | {f.start_lag:.0f} ms |"
        )
    return "\n".join(lines)


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory(prefix="triggerer-load-") as home, server() as url:
        for count, interval in SIZES:
            for kind in ("bare", "triggers"):
                rows.append((kind, count, measured(kind, count, interval, url, Path(home))))
                print(f"{count} {kind}: {rows[-1][2]}", flush=True)
    print(table(rows))


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case ["serve"]:
            asyncio.run(serve())
        case ["run", kind, count, interval, url]:
            figures = asyncio.run(run(kind, int(count), float(interval), url))
            print(json.dumps(asdict(figures)))
        case _:
            sys.exit(__doc__)
