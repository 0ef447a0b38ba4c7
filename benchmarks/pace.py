"""Computes how many polls an execution takes, and how late its end is noticed: `python -m benchmarks.pace`."""

from __future__ import annotations

import random
import statistics

from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.wait.watch import Watch
from benchmarks.harness import turns

RUNNING = Execution(kickoff_id="k-1", state=ExecutionState.RUNNING, raw_state="running")
LENGTHS = {"10 s": 10.0, "1 min": 60.0, "10 min": 600.0, "1 h": 3600.0, "8 h": 8 * 3600.0}
FIXED = 5.0
DRAWS = 500


def one(length: float, chance: random.Random) -> tuple[int, float]:
    """Return how many polls an execution of that length takes by default, and how late its end is noticed."""
    watch, now, polls = Watch(kickoff_id="k-1", started=0.0), 0.0, 0
    while now < length:
        watch.saw(RUNNING, now=now)
        polls += 1
        now += watch.pause(now=now, draw=chance.random())
    return polls + 1, now - length


def run(full: bool = False) -> str:
    chance, rows, kept = random.Random(1), [], {}
    for name, length in LENGTHS.items():
        drawn = [one(length * chance.uniform(0.98, 1.02), chance) for _ in range(DRAWS)]
        polls, late = statistics.median(each[0] for each in drawn), [each[1] for each in drawn]
        share = polls / (length / FIXED)
        kept[name] = {"polls": polls, "share": share, "late": max(late)}
        rows.append([name, f"{polls:.0f}", f"{share:.2f}", f"{statistics.median(late):.1f}", f"{max(late):.1f}"])
    turns.keep("pace", kept)
    head = ["execution", "polls", f"compared with a fixed {FIXED:.0f} s", "seconds until noticed, median", "at most"]
    return "One execution with default settings\n\n" + turns.table(head, rows)


if __name__ == "__main__":
    print(run())
