"""Measures the cost of a poll in a triggerer: `python -m benchmarks.poll_cost [--full]`.

Each case is a process with one event loop, in which Airflow's own code runs the triggers, polling a server in another
process. The benchmark compares our trigger (with single polls, and with many polls per request), the smallest possible
trigger on a shared aiohttp session, those of other providers, a hand-written protocol, and one that only sleeps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.harness import kinds, peers, pictures, server, turns
from benchmarks.harness.turns import Figures, Turns
from benchmarks.harness.waits import measured

OURS, BATCH = "ours", "ours, /statuses"
CPU = "cpu_us_per_poll"
COLUMNS = [
    "waits",
    "CPU µs per poll",
    "of the smallest",
    "polls/s",
    "lag p99 ms",
    "sockets",
    "connections per poll",
    "KiB per wait",
]


def cases(
    count: int, interval: float, seconds: float, with_floors: bool, stack: ExitStack
) -> tuple[Any, dict[str, str]]:
    plain = stack.enter_context(server.running())
    batch = stack.enter_context(server.running(server.Options(batch=True)))
    asked = [(OURS, kinds.OURS, plain), (kinds.SMALLEST, kinds.SMALLEST, plain), (BATCH, kinds.OURS, batch)]
    missing: dict[str, str] = {}
    for peer in peers.PROVIDERS:
        try:
            peers.python(peer)
        except peers.NotInstalled as reason:
            missing[peer] = str(reason)
        else:
            asked.append((peer, peer, plain))
    if with_floors:
        asked += [(kinds.PROTOCOL, kinds.PROTOCOL, plain), (kinds.SLEEPING, kinds.SLEEPING, plain)]
    measures: dict[str, Callable[[], Figures]] = {
        name: partial(measured, kind, count, interval, where, seconds) for name, kind, where in asked
    }
    return measures, missing


def compare(count: int, interval: float, seconds: float, rounds: int, *, with_floors: bool = True) -> Turns:
    with ExitStack() as stack:
        measures, missing = cases(count, interval, seconds, with_floors, stack)
        found = turns.in_turn(measures, rounds)
    found.missing = missing
    return found


def rows(found: Turns) -> list[list[str]]:
    measured_rows = [
        [
            case,
            found.shown(case, CPU),
            found.ratio(case, kinds.SMALLEST, CPU),
            found.shown(case, "polls_per_second"),
            found.shown(case, "lag_p99_ms", 1),
            found.shown(case, "sockets"),
            found.shown(case, "connections_per_poll", 2),
            found.shown(case, "kib_per_wait", 1),
        ]
        for case in found.of
    ]
    return measured_rows + [[case, f"not measured: {reason}", *[""] * 6] for case, reason in found.missing.items()]


def many(sizes: tuple[int, ...], interval: float, seconds: float) -> dict[str, dict[int, float]]:
    """Return the CPU milliseconds per second that the waits cost, by kind and number of waits."""
    costs: dict[str, dict[int, float]] = {OURS: {}, BATCH: {}, kinds.SMALLEST: {}, kinds.SLEEPING: {}}
    with server.running() as plain, server.running(server.Options(batch=True)) as batch:
        for size in sizes:
            for name, costs_of in costs.items():
                kind, where = (kinds.OURS, batch) if name == BATCH else (name, plain)
                figures = measured(kind, size, interval, where, seconds, settle=1.5)
                costs_of[size] = figures[CPU] * figures["polls_per_second"] / 1000
                print(f"  {size} {name}", flush=True)
    return costs


def run(full: bool) -> str:
    found = compare(1000, 1.0, 15.0 if full else 3.0, 5 if full else 1)
    text = "1,000 waits at 1 s\n\n" + turns.table(COLUMNS, rows(found))
    kept: dict[str, Any] = {"1000 at 1 s": vars(found)}
    if full:
        with server.running() as plain, server.running(server.Options(batch=True)) as batch:
            asked = {OURS: (kinds.OURS, plain), kinds.SMALLEST: (kinds.SMALLEST, plain), BATCH: (kinds.OURS, batch)}
            large_turns = turns.in_turn(
                {name: partial(measured, kind, 10_000, 10.0, where, 30.0) for name, (kind, where) in asked.items()}, 2
            )
        text += "\n\n10,000 waits at 10 s\n\n" + turns.table(COLUMNS, rows(large_turns))
        costs = many((1000, 2500, 5000, 10_000), 10.0, 12.0)
        kept |= {"10000 at 10 s": vars(large_turns), "cost by number": costs}
        pictures.cost_by_number(costs)
    turns.keep("poll_cost", kept)
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more turns, 10,000 waits, and the chart")
    print(run(parser.parse_args().full))
