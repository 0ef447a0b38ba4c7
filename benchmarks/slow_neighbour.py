"""Polls a slow or dead deployment and a healthy one in the same loop: `python -m benchmarks.slow_neighbour [--full]`.

Reports the delay of the healthy deployment's polls: the 99th percentile of the time between two polls of a wait, minus
the longest pause that the wait itself may choose.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.harness import server, turns
from benchmarks.harness.kinds import connections

NEIGHBOURS = {
    "none": None,
    "answers after 10 s": server.Options(latency=10.0),
    "never answers": server.Options(dead=True),
}
LONGEST_PAUSE = 1.2  # in intervals


async def wait_beside(count: int, interval: float, seconds: float, with_neighbour: bool) -> None:
    """Run the waits for both deployments in this loop."""
    from airflow_crew_provider.triggers.crew import CrewStatusTrigger

    async def one(number: int, conn_id: str) -> None:
        trigger = CrewStatusTrigger(f"k-{number}", conn_id, poll_interval=interval, not_before=1.0)
        async for event in trigger.run():
            raise AssertionError(f"no wait should end: {event}")

    deployments = ["crew_default", "crew_slow"][: 1 + with_neighbour]
    waits = [asyncio.create_task(one(number, conn_id)) for conn_id in deployments for number in range(count)]
    await asyncio.sleep(seconds)
    assert not any(wait.done() for wait in waits)
    os._exit(0)


def lateness(count: int, interval: float, seconds: float, neighbour: server.Options | None) -> float:
    with server.running() as healthy, server.running(neighbour) as slow, tempfile.TemporaryDirectory() as home:
        of_slow = {"AIRFLOW_CONN_CREW_SLOW": connections(slow.url)["AIRFLOW_CONN_CREW_DEFAULT"]}
        env = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
        asked = json.dumps([count, interval, seconds, neighbour is not None])
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.slow_neighbour", "--child", asked],
            env={**env, **connections(healthy.url), **of_slow},
        )
        try:
            time.sleep(seconds / 2)  # the waits have begun
            healthy.stats()
            process.wait(seconds + 180)
            return healthy.stats()["gap_p99"] - interval * LONGEST_PAUSE
        finally:
            process.kill()
            process.wait(10)


def run(full: bool) -> str:
    count, interval, seconds = (5_000, 10.0, 90.0) if full else (500, 2.0, 14.0)
    late = {}
    for name, neighbour in NEIGHBOURS.items():
        late[name] = lateness(count, interval, seconds, neighbour)
        print(f"  neighbour: {name}", flush=True)
    turns.keep("slow_neighbour", {"count": count, "interval": interval, "late_p99": late})
    rows = [[name, f"{seconds_late:.2f} s", f"{seconds_late / interval:.2f}"] for name, seconds_late in late.items()]
    head = ["neighbour", "healthy polls late, p99", "in intervals"]
    return f"{count:,} waits at {interval:.0f} s on each of two deployments\n\n" + turns.table(head, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="5,000 waits at 10 s on each")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        asyncio.run(wait_beside(*given.child))
    print(run(given.full))
