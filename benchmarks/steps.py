"""Measures the cost of a crew's steps: `python -m benchmarks.steps [--full]`.

A segment of the service stores tool steps with results of 1 KB, or makes as many writes without steps. A process makes
30 model calls and 30 tool calls per task, as CrewAI does, recorded and unrecorded; a thread receives its reports, so
that only its own work counts, without commits. Status requests go to a service with a journal and to one without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness import turns
from benchmarks.service_load import ask, request
from benchmarks.traces import CPU, cpu_once_idle, serving, turn_of

NONE, KEPT = "--no-journal", "with steps"
STEPS, RESULT = 30, "x" * 1024
TASK = {
    "id": "write",
    "human_input": True,  # so that the task has not ended when it is measured
    "output": "x",
    "steps": [{"tool": "look_up", "arguments": {"number": number}, "result": RESULT} for number in range(STEPS)],
}
EXECUTIONS = 20  # for measuring their size
TASKS = 10  # per turn of a process


def of_service(folder: Path, rounds: int) -> tuple[turns.Turns, float]:
    """Return the CPU time of a status request, and the bytes that 30 steps take up while their task runs."""
    with ExitStack() as stack:
        options = {NONE: ("--no-journal",), KEPT: ()}
        at = {case: stack.enter_context(serving(folder, {"tasks": [TASK]}, *given)) for case, given in options.items()}
        polled = {case: asyncio.run(_kicked_off(port, EXECUTIONS))[-1] for case, (_, port) in at.items()}
        asked = {case: [request("GET", f"/status/{polled[case]}")] for case in at}
        for process, _ in at.values():
            cpu_once_idle(process)
        measured = turns.in_turn({case: turn_of(*at[case], asked[case]) for case in at}, rounds)
    return measured, _bytes(folder / f"{at[KEPT][1]}.db") / EXECUTIONS


async def _kicked_off(port: int, count: int) -> list[str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = request("POST", "/kickoff", {"inputs": {}})
    return [json.loads((await ask(reader, writer, sent))[1])["kickoff_id"] for _ in range(count)]


def _bytes(database: Path) -> float:
    """Return the bytes that the journal and step tables take up, including their indexes."""
    tables = "SELECT name FROM sqlite_master WHERE tbl_name IN ('journal', 'steps')"
    with sqlite3.connect(database) as connection:
        return float(connection.execute(f"SELECT sum(pgsize) FROM dbstat WHERE name IN ({tables})").fetchone()[0])


def of_process(part: str, rounds: int) -> turns.Turns:
    def turn(case: str) -> Callable[[], turns.Figures]:
        command = [sys.executable, "-m", "benchmarks.steps", "--part", part, f"--case={case}"]
        return lambda: json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])

    return turns.in_turn({case: turn(case) for case in (NONE, KEPT)}, rounds)


def segment(case: str) -> None:
    """Print the CPU time per step of the thread that stores it or, without steps, of as many writes."""
    from crew_service.engine.crew import Step, StepDone
    from crew_service.engine.limits import Limits
    from crew_service.engine.printed_writer import PrintedWriter
    from crew_service.engine.segments import Segment
    from crew_service.settings import Settings
    from crew_service.storage import claims, queries
    from crew_service.storage.database import Database

    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"{folder}/crew-service.db")
        with database.writing() as connection:
            claims.register(connection, "p", host="", alone=True, now=1.0)
            times = dict.fromkeys(("created_at", "updated_at", "due_at"), 1.0)
            queries.create(connection, id="e", kickoff_id="e", crew="", inputs={}, usage={}, **times)
            claims.claim_due(connection, "p", "", now=2.0, limit=1)
            row = queries.by_id(connection, "e")
        assert row
        printed = PrintedWriter(database, Settings("a-token-of-20-letters"))
        ends = {"posted": lambda: None, "spent": lambda used: None, "printed": printed}
        stored = Segment(database, row, [], limits=Limits(3600.0, None), fresh_ids=False, **ends)
        about = {"task_id": "write", "part": "", "kind": "tool", "name": "look_up", "agent": "Writer"}
        over = {"state": "done", "seconds": 0.1, "answer": json.dumps(RESULT), "result": json.dumps(RESULT)}
        stored.report(StepDone())
        began = time.thread_time()
        for number in range(1, TASKS * STEPS + 1):
            step = Step(number=number, key=str(number), arguments='{"number": 1}', **about)
            for report in (step, replace(step, arguments=None, **over)) if case == KEPT else [StepDone()] * 2:
                stored.report(report)
        print(json.dumps({CPU: (time.thread_time() - began) / TASKS / STEPS * 1e6}))
        database.close()


def crew(case: str) -> None:
    """Print the CPU time of a step in the thread that makes the call."""
    from crewai import BaseLLM
    from crewai.tools import BaseTool

    from crew_service.crewai import channel, journal
    from crew_service.crewai.channel import Channel
    from crew_service.crewai.usage import TokenMeter
    from crew_service.engine.crew import TaskDone, TaskStarted

    class Model(BaseLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
            self._track_token_usage_internal({"prompt_tokens": 10, "completion_tokens": 1})
            return "I look it up."

    class LookUp(BaseTool):
        name: str = "look_up"
        description: str = "Look something up."

        def _run(self, number: int) -> str:
            return RESULT

    class Service:
        is_mine = True

        def __init__(self) -> None:
            mine, other = socket.socketpair()
            self._channel = Channel(mine)
            threading.Thread(target=lambda: [None for _ in iter(lambda: other.recv(65536), b"")], daemon=True).start()

        def report(self, progress: Any) -> None:
            self._channel.send(channel.packed(progress))

    service = Service()
    report = TokenMeter(journal.start([], 0, [], service) if case == KEPT else service.report, lambda task: "write")
    model, tool = Model(model="offline"), LookUp()
    spent = 0.0
    for number in range(TASKS):
        name = f"task_{number}"
        report(TaskStarted(name, "Writer"))
        journal.enter(name)
        messages = [{"role": "user", "content": RESULT}]
        began = time.thread_time()
        for step in range(STEPS):
            answer = model.call(messages)
            found = tool.run(number=step)
            messages += [{"role": "assistant", "content": answer}, {"role": "tool", "content": found}]
        spent += time.thread_time() - began
        report(TaskDone({"task_id": name, "agent": "Writer", "output": "x", "execution_time": 1.0}))
    print(json.dumps({CPU: spent / TASKS / STEPS / 2 * 1e6}))


def run(full: bool) -> str:
    rounds = 9 if full else 3
    with tempfile.TemporaryDirectory() as folder:
        status, size = of_service(Path(folder), rounds)
    shown = {"status request": status, "step, stored by the service": of_process("segment", rounds)}
    if find_spec("crewai"):
        shown["step, in the crew's process"] = of_process("crew", rounds)
    turns.keep("steps", {"bytes": size, **{what: each.of for what, each in shown.items()}})
    rows = [
        [what, f"{each.median(NONE, CPU):,.0f} µs", f"{each.median(KEPT, CPU):,.0f} µs", each.ratio(KEPT, NONE, CPU)]
        for what, each in shown.items()
    ]
    table = turns.table(["CPU of one", "without", "with journal and steps", "ratio"], rows)
    return f"{table}\n\n{STEPS} steps with results of 1 KB take {size / 1024:.0f} KB while their task runs."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more turns")
    parser.add_argument("--part", choices=["segment", "crew"], help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=[NONE, KEPT], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        {"segment": segment, "crew": crew}[given.part](given.case)
    else:
        print(run(given.full))
