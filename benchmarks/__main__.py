"""Benchmarks of waits and DAG files: `python -m benchmarks [--full]`.

Prints the tables in benchmarks/README.md; those that need Airflow's processes only with `--full`. Run `inbox_wake.py`
and the load tests of the service, `service_load.py` and `service_machines.py`, separately.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

from benchmarks import (
    downstream_start,
    files,
    pace,
    parsing,
    poll_cost,
    slow_neighbour,
    steps,
    tls_keep_alive,
    traces,
    triggerer_load,
)
from benchmarks.harness import turns

PARTS = {
    "What a poll costs": poll_cost.run,
    "Connections over TLS": tls_keep_alive.run,
    "A slow neighbour": slow_neighbour.run,
    "The pace of one wait": pace.run,
    "Traces off and on": traces.run,
    "Steps of a crew": steps.run,
    "Files": files.run,
    "DAG files": parsing.run,
}
ON_PROCESSES = {"A triggerer": triggerer_load.run, "After the crew": downstream_start.run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all sizes and more turns; takes about an hour")
    full = parser.parse_args().full
    began = time.monotonic()
    parts = {title: partial(run, full) for title, run in PARTS.items()} | (ON_PROCESSES if full else {})
    failed = [title for title, run in parts.items() if not _printed(title, run)]
    about = ", ".join(f"{name} {number}" for name, number in turns.versions().items())
    print(f"\n{about}; {time.monotonic() - began:.0f} s. As JSON: {turns.RESULTS.name}/")
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}")


def _printed(title: str, run: Callable[[], str]) -> bool:
    """Print the tables of one part; if it fails, print the traceback, so that the other parts still run."""
    print(f"\n## {title}\n", flush=True)
    try:
        print(f"\n{run()}", flush=True)
    except Exception:
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    main()
