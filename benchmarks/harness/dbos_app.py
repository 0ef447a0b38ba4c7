"""Runs DBOS workflows whose steps do nothing: `python dbos_app.py URL`, in DBOS's own environment.

Reads a command per line from stdin, and answers each with a line of JSON once it is done.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from dbos import DBOS, SetWorkflowID


@DBOS.step()
def step(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


@DBOS.workflow()
def execution(steps: int, seconds: float) -> str:
    """Run steps, of which the second one takes a time."""
    for number in range(steps):
        step(seconds if number == 1 else 0.0)
    return "done"


def run(count: int, steps: int) -> float:
    """Return the seconds that executions take that are all started at once."""
    began = time.perf_counter()
    for handle in [DBOS.start_workflow(execution, steps, 0.0) for _ in range(count)]:
        handle.get_result()
    return time.perf_counter() - began


def begin(workflow_id: str, steps: int, seconds: float) -> str:
    with SetWorkflowID(workflow_id):
        DBOS.start_workflow(execution, steps, seconds)
    return "begun"


def end(workflow_id: str) -> str:
    return str(DBOS.retrieve_workflow(workflow_id).get_result(polling_interval_sec=0.01))


def main(url: str) -> None:
    DBOS(config={"name": "bench", "system_database_url": url, "application_version": "1", "log_level": "ERROR"})
    DBOS.launch()
    commands: dict[str, Any] = {"run": run, "begin": begin, "end": end}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(commands[name](*arguments)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
