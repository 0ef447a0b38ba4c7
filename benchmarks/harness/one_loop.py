"""Runs many waits of one kind in one event loop, each with Airflow's own `TriggerRunner.run_trigger`.

This is a separate process, so that other providers can be measured in their own environments; it prints its figures as
JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import os
import statistics
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
import psutil

from benchmarks.harness import kinds

TICK = 0.005


@dataclass
class Figures:
    """The measurements of one process."""

    cpu_us_per_poll: float
    polls_per_second: float
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    start_lag_ms: float
    """The longest time that the loop was blocked while all waits started at once."""
    sockets: int
    kib_per_wait: float
    connections_per_poll: float
    requests_per_poll: float


class Lag:
    """Measures how late the loop resumes a task that is ready to continue, in milliseconds."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    async def sample(self) -> None:
        while True:
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            self.samples.append((time.perf_counter() - due) * 1000)


def start(kind: str, count: int, interval: float, url: str) -> list[asyncio.Task[Any]]:
    """Start the waits as a triggerer does."""
    from airflow.jobs.triggerer_job_runner import TriggerRunner

    runner, make = TriggerRunner(), kinds.KINDS[kind]
    tasks = []
    for number in range(1, count + 1):
        trigger = make(number, interval, url)
        runner.triggers[number] = {"name": f"wait-{number}", "events": 0}  # type: ignore[typeddict-item]
        tasks.append(asyncio.create_task(runner.run_trigger(number, trigger)))
    return tasks


async def stats(session: aiohttp.ClientSession) -> dict[str, float]:
    async with session.get("/stats", ssl=False) as response:
        return await response.json()


async def polls(session: aiohttp.ClientSession) -> float:
    return (await stats(session))["polls"]


async def measure(kind: str, count: int, interval: float, url: str, seconds: float, settle: float) -> Figures:
    me, lag = psutil.Process(), Lag()
    async with aiohttp.ClientSession(url) as session:
        gc.collect()
        before, first = me.memory_info().rss, await stats(session)
        background = [asyncio.create_task(lag.sample())]
        waits = start(kind, count, interval, url)
        await asyncio.sleep(settle * interval)
        while kind != kinds.SLEEPING and await polls(session) - first["polls"] < settle * count * 0.8:  # noqa: ASYNC110
            await asyncio.sleep(0.25)  # on a busy machine, they take longer to start
        start_lag = max(lag.samples)
        lag.samples.clear()
        began, had, used = time.perf_counter(), await stats(session), me.cpu_times()
        await asyncio.sleep(seconds)
        took, has, now = time.perf_counter() - began, await stats(session), me.cpu_times()
        percentiles = statistics.quantiles(lag.samples, n=100)
        sockets = sum(each.status == psutil.CONN_ESTABLISHED for each in me.net_connections("tcp"))
        ended = [task for task in (*waits, *background) if task.done()]
        assert not ended, f"a wait has ended: {ended[0]}"
        memory = me.memory_info().rss - before
    counted = {name: has[name] - had[name] for name in has}
    polled = counted["polls"] or round(count * took / (interval * 1.1))  # those that only sleep send no requests
    assert first["polls"] <= has["polls"]
    cpu = now.user + now.system - used.user - used.system
    return Figures(
        cpu_us_per_poll=cpu / polled * 1e6,
        polls_per_second=polled / took,
        lag_p50_ms=percentiles[49],
        lag_p99_ms=percentiles[98],
        lag_max_ms=max(lag.samples),
        start_lag_ms=start_lag,
        sockets=max(0, sockets - 1),  # without the benchmark's own
        kib_per_wait=memory / count / 1024,
        connections_per_poll=counted["connections"] / polled,
        requests_per_poll=counted["requests"] / polled,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=kinds.KINDS)
    parser.add_argument("count", type=int)
    parser.add_argument("interval", type=float)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of the measurement")
    parser.add_argument("--settle", type=float, default=3.0, help="intervals to wait before the measurement")
    parser.add_argument("--profile", help="write a profile to this file")
    asked = vars(parser.parse_args())
    asyncio.run(report(asked.pop("profile"), asked))


async def report(profile: str | None, asked: dict[str, Any]) -> None:
    with cProfile.Profile() if profile else nullcontext() as taken:
        figures = await measure(**asked)
    if taken:
        taken.dump_stats(profile)
    print(json.dumps(asdict(figures)), flush=True)
    os._exit(0)  # stopping ten thousand waits one by one is not part of the measurement


if __name__ == "__main__":
    main()
