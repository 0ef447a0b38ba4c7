"""Puts load on the crew service: `python benchmarks/service_load.py`. Prints the figures in benchmarks/README.md.

Each rate is measured over persistent connections to a service in its own process, in the same run as a bare FastAPI
route that returns a similar body.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from scripts.stack.ports import free_port

TOKEN = "benchmark-token-0123456789"
CONNECTIONS = 16
ROUNDS = 11
SECONDS = 0.5  # per turn
STORED = 1_000_000
BARE = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/status/{kickoff_id}")
async def status(kickoff_id: str):
    return {"status": "running", "current_task": "t", "progress": {"completed_tasks": 1, "total_tasks": 3}}
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
"""
SCENARIO = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research_task", "agent": "Researcher", "seconds": 0.05, "output": "Notes on {topic}"},
        {"id": "draft_task", "agent": "Writer", "seconds": 0.05, "output": "Draft on {topic}", "human_input": True},
        {"id": "last_task", "agent": "Editor", "output": "Article on {topic}"},
    ],
}


@contextmanager
def started(*command: str, port: int) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def request(method: str, path: str, body: dict | None = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> tuple[int, bytes]:
    writer.write(sent)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
    return int(head[9:12]), await reader.readexactly(length)


@dataclass
class Side:
    """A server under load, with its response rates and the CPU time that it used."""

    process: int
    port: int
    sent: list[bytes]
    rates: list[float] = field(default_factory=list)
    cpu: float = 0.0
    answers: int = 0

    async def turn(self, seconds: float = SECONDS) -> None:
        cpu, began = cpu_seconds(self.process), time.perf_counter()
        shares = [self.sent[i::CONNECTIONS] or self.sent for i in range(CONNECTIONS)]
        count = sum(await asyncio.gather(*(_client(self.port, share, began + seconds) for share in shares)))
        self.rates.append(count / (time.perf_counter() - began))
        self.cpu += cpu_seconds(self.process) - cpu
        self.answers += count

    def told(self) -> str:
        return f"{statistics.median(self.rates):.0f}/s, {self.cpu / self.answers * 1e6:.0f} us of CPU each"


def cpu_seconds(process: int) -> float:
    return time.clock_gettime(~process << 3 | 2)  # the clock of clock_getcpuclockid(3), which Python does not wrap


async def _client(port: int, sent: list[bytes], until: float) -> int:
    """Return the number of answers, which is at least one: a busy machine may need a turn's time for the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = 0
    while not count or time.perf_counter() < until:
        code, _ = await ask(reader, writer, sent[count % len(sent)])
        assert code == 200, code
        count += 1
    writer.close()
    return count


async def burst(port: int, size: int) -> tuple[list[str], float]:
    """Kick off `size` executions at once, each over its own connection; return their ids and the seconds it took."""

    async def one() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        code, body = await ask(reader, writer, request("POST", "/kickoff", {"inputs": {"topic": "x"}}))
        writer.close()
        assert code == 200, (code, body)
        return json.loads(body)["kickoff_id"]

    began = time.perf_counter()
    ids = await asyncio.gather(*(one() for _ in range(size)))
    return list(ids), time.perf_counter() - began


async def settled(port: int, ids: list[str], word: str) -> float:
    """Return the seconds until every execution has the status `word`."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for kickoff_id in ids:
        while True:
            _, body = await ask(reader, writer, request("GET", f"/status/{kickoff_id}"))
            if json.loads(body)["status"] == word:
                break
            await asyncio.sleep(0.05)
    writer.close()
    return time.perf_counter() - began


def multiply(database: Path, kickoff_id: str, total: int) -> None:
    """Fill the database with copies of one execution and its results."""
    with sqlite3.connect(database) as connection:
        for table, key, others in (("executions", "id", ("kickoff_id",)), ("results", "execution_id", ())):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            rows = connection.execute(f"SELECT * FROM {table} WHERE {key} = ?", (kickoff_id,)).fetchall()
            if table == "executions":
                ids = [str(uuid4()) for _ in range(total)]
            marks = ",".join("?" * len(names))
            for row in rows:
                values = dict(zip(names, row, strict=True))
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({marks})",
                    ([*{**values, key: i, **dict.fromkeys(others, i)}.values()] for i in ids),
                )


async def measure(folder: Path) -> None:
    scenario, database, bare = folder / "crew.json", folder / "service.db", folder / "bare.py"
    scenario.write_text(json.dumps(SCENARIO))
    bare.write_text(BARE)
    port, bare_port = free_port(), free_port()
    service = ["-m", "crew_service", "serve", "--port", str(port), "--token", TOKEN]
    service += ["--db", str(database), "--crew", str(scenario)]
    with started(*service, port=port) as pid, started(str(bare), str(bare_port), port=bare_port) as bare_pid:
        sides = (pid, port), (bare_pid, bare_port)
        ids, seconds = await burst(port, 200)
        print(f"200 kickoffs at once: all accepted in {seconds:.2f} s")
        print(f"... all waiting for a person after {await settled(port, ids, 'pending'):.2f} s more")
        await report("waiting for a person", *sides, ids)
        await asyncio.gather(*(approve(port, kickoff_id) for kickoff_id in ids))
        await settled(port, ids, "completed")
        await report("completed", *sides, ids)
        multiply(database, ids[0], STORED)
        await report(f"completed, with {STORED:,} more stored", *sides, ids)


async def approve(port: int, kickoff_id: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {"execution_id": kickoff_id, "task_id": "draft_task", "human_feedback": "", "is_approve": True}
    await ask(reader, writer, request("POST", "/resume", body))
    writer.close()


async def report(what: str, service: tuple[int, int], bare: tuple[int, int], ids: list[str]) -> None:
    """Measure both sides in turn, so that the load of the machine affects both, and print the result."""
    ours = Side(*service, [request("GET", f"/status/{kickoff_id}") for kickoff_id in ids])
    theirs = Side(*bare, [request("GET", "/status/x")])
    for _ in range(ROUNDS):
        await ours.turn()
        await theirs.turn()
    quotient = statistics.median(one / other for one, other in zip(ours.rates, theirs.rates, strict=True))
    print(f"status ({what}): {ours.told()}; bare route: {theirs.told()}; median ratio of the rates {quotient:.0%}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))
