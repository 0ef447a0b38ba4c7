"""Runs thousands of waits in a real triggerer on PostgreSQL: `python -m benchmarks.triggerer_load [waits] [seconds]`.

Needs PostgreSQL, on this machine or in CREW_TESTS_POSTGRES. Counts polls, connections and lookups while the triggerer
has the waits, then kills it and measures how long another one takes to poll them all. Then does the same with the
smallest possible trigger, silent and with as many log lines as ours, which shows Airflow's own share of the cost.
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import sqlalchemy as sa

from benchmarks.harness.kinds import LOGGING, OURS, SMALLEST
from benchmarks.harness.server import Options, Running, running
from benchmarks.harness.turns import keep, table
from scripts.find_postgres import server_url
from scripts.stack import AirflowStack, wait_until
from scripts.stack.settings import inherited

HERE = Path(__file__).parent
BLOCKED = "async thread was blocked"
BACKEND = "benchmarks.harness.counted_connections.CountedConnections"
DEFERRED = sa.text("SELECT count(*) FROM task_instance WHERE state = 'deferred'")


def polled_by_all(server: Running, waits: int) -> float:
    """Return the seconds until each wait has been polled again."""
    began = time.monotonic()
    server.forget()
    wait_until(lambda: server.stats()["waits"] >= waits, f"polls of {waits} waits", pause=0.5, patience=600)
    return time.monotonic() - began


def cpu_of(stack: AirflowStack) -> tuple[float, float]:
    """Return the CPU seconds of the triggerer with its children, and of its busiest process (the triggers')."""
    processes = stack.group.components["triggerer"].processes()
    used = [sum(each.cpu_times()[:2]) for each in processes]
    return sum(used), max(used)


def measure(
    stack: AirflowStack, server: Running, lookups: Path, kind: str, waits: int, seconds: float
) -> dict[str, float]:
    run = stack.api.trigger("many_waits")
    run.wait_for_task("wait", ["deferred"])
    stack.api.json("PATCH", "dags/many_waits", json={"is_paused": True})
    began = time.monotonic()
    copy = [sys.executable, "-m", "benchmarks.harness.copied_waits", str(waits), kind, server.url]
    subprocess.run(copy, env={**inherited(), **stack.env}, check=True, timeout=600)
    found = {"taken up s": time.monotonic() - began + polled_by_all(server, waits)}

    before, lookups_before = server.stats(), len(lookups.read_text().splitlines())
    cpu, cpu_of_triggers = cpu_of(stack)
    time.sleep(seconds)
    after, (used, used_by_triggers) = server.stats(), cpu_of(stack)
    polls = after["polls"] - before["polls"]
    found |= {
        "held s": seconds,
        "polls per s": polls / seconds,
        "gap p99 s": after["gap_p99"],
        "new connections": after["connections"] - before["connections"],
        "look-ups": len(lookups.read_text().splitlines()) - lookups_before,
        "CPU µs per poll": (used - cpu) / polls * 1e6,
        "of that, where the triggers run": (used_by_triggers - cpu_of_triggers) / polls * 1e6,
    }
    stack.kill("triggerer")
    stack.start("triggerer")
    found["taken up after a kill s"] = polled_by_all(server, waits)
    found["look-ups in all"] = len(lookups.read_text().splitlines())
    found["blocked event loop warnings"] = stack.logs(["triggerer"]).count(BLOCKED)
    with sa.create_engine(stack.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]).connect() as connection:
        found["still deferred"] = connection.execute(DEFERRED).scalar_one()
    return found


def one(postgres: str, kind: str, waits: int, seconds: float) -> dict[str, float]:
    """Measure one kind of wait in its own Airflow installation."""
    with running(Options()) as server:
        stack = AirflowStack(dags=[HERE / "airflow_dags"], postgres=postgres)
        lookups = stack.home / "lookups"
        lookups.touch()
        stack.env |= {
            "AIRFLOW__SECRETS__BACKEND": BACKEND,
            "AIRFLOW__TRIGGERER__CAPACITY": str(waits + 100),
            "COUNTED_LOOKUPS": str(lookups),
            "COUNTED_URL": server.url,
            "PYTHONPATH": str(HERE.parent),
        }
        with stack:
            return measure(stack, server, lookups, kind, waits, seconds)


def run(waits: int = 5000, seconds: float = 300.0) -> str:
    """Measure, save the results as JSON, and return the table."""
    postgres = server_url()
    if not postgres:
        return "Not measured: there is no PostgreSQL on this machine or in CREW_TESTS_POSTGRES."
    found = {kind: one(postgres, kind, waits, seconds) for kind in (OURS, SMALLEST, LOGGING)}
    keep("triggerer_load", {"waits": waits, **found})
    rows = [[name, *(_shown(found[kind][name]) for kind in found)] for name in found[OURS]]
    about = f"{waits:,} waits at 30 s in one triggerer, Airflow {version('apache-airflow')} on PostgreSQL"
    return f"{about}\n\n{table(['', *found], rows)}"


def _shown(value: float) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


if __name__ == "__main__":
    print(run(*(int(each) for each in sys.argv[1:3])))
