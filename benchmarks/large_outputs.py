"""Measures the memory that large outputs take in the crew service: `python -m benchmarks.large_outputs`.

Runs 15 executions of 10 MB each, with webhooks to a receiver that never responds, and prints how much more memory the
service uses than an idle one: at its peak and at the end.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import server
from benchmarks.service_load import ask, request
from benchmarks.traces import serving

EXECUTIONS = 15
CREW = {"inputs": [], "tasks": [{"id": "write", "output": "{number}" + "x" * 10_000_000}]}
SECONDS = 300.0


def megabytes(process: int, name: str) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1]) / 1000


async def said(port: int, sent: bytes) -> Any:
    streams = await asyncio.open_connection("127.0.0.1", port)
    code, answer = await ask(*streams, sent)
    streams[1].close()
    return json.loads(answer) if code == 200 else None


async def measure(process: int, port: int, receiver: str) -> None:
    idle, until = megabytes(process, "VmRSS"), time.monotonic() + SECONDS
    body = {"inputs": {}, "crewWebhookUrl": f"{receiver}/crew", "taskWebhookUrl": f"{receiver}/task"}
    started = 0
    while started < EXECUTIONS and time.monotonic() < until:
        started += await said(port, request("POST", "/kickoff", body)) is not None  # 503 while others write
    completed = request("GET", "/executions?state=completed&limit=100")
    while time.monotonic() < until:
        found = await said(port, completed)
        if found and len(found["executions"]) == EXECUTIONS:
            break
        await asyncio.sleep(0.1)
    most, held = (megabytes(process, name) - idle for name in ("VmHWM", "VmRSS"))
    print(f"{started} executions, above an idle service: {most:.0f} MB at most, {held:.0f} MB at the end")


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        server.running(server.Options(dead=True)) as silent,
        serving(Path(folder), CREW) as (process, port),
    ):
        asyncio.run(measure(process, port, silent.url))
