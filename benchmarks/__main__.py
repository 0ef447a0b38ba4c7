"""All benchmarks that need no Airflow processes: `python -m benchmarks [--full]`.

Prints the tables of docs/performance.md. What needs Airflow's processes, `inbox_wake.py`, and the load on the service,
`service_load.py` and `service_machines.py`, are run by themselves.
"""

from __future__ import annotations

import argparse
import time

from benchmarks import pace, parsing, poll_cost, slow_neighbour, tls_keep_alive
from benchmarks.harness import turns

PARTS = {
    "What a poll costs": poll_cost.run,
    "Connections over TLS": tls_keep_alive.run,
    "A slow neighbour": slow_neighbour.run,
    "The pace of one wait": pace.run,
    "DAG files": parsing.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all sizes and more turns: about half an hour")
    full = parser.parse_args().full
    began, texts = time.monotonic(), []
    for title, run in PARTS.items():
        print(title, flush=True)
        texts.append(f"## {title}\n\n{run(full)}")
    about = ", ".join(f"{name} {number}" for name, number in turns.versions().items())
    print("\n" + "\n\n".join(texts))
    print(f"\n{about}; {time.monotonic() - began:.0f} s. As JSON: {turns.RESULTS.name}/")


if __name__ == "__main__":
    main()
