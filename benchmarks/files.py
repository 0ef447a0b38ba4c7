"""Measures a file of 100 MB on its way through provider and service: `python -m benchmarks.files`.

A process with the provider uploads the file, starts an execution with it and downloads it again. In the same run, `cp`
copies the file with and without a sync, and another process receives it with Starlette alone and writes it to disk.
Memory is the most that a process used above what it used when idle.

A crew of 200 tool calls that writes 50 files shows what the looks into its folder cost.
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
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness import turns
from benchmarks.service_load import TOKEN
from benchmarks.traces import serving
from scripts.stack.ports import free_port

SIZE = 100_000_000
CREW = {"tasks": [{"id": "read", "output": "{report.size} {report.sha256}"}]}
LIMITS = ("--max-file-size", "200MiB", "--max-files-size", "400MiB")
CALLS, FILES = 200, 50
MOST_MEMORY = 64  # MiB above idle, in each process


def memory(process: int, name: str) -> float:
    """Return a figure of a process's memory in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# --- the provider's process ---


def worker(host: str, file: Path) -> None:
    """Send the file as a task does, download it, and print the seconds and the memory of both as JSON."""
    os.environ["AIRFLOW_CONN_CREW_DEFAULT"] = json.dumps(
        {"conn_type": "crew", "host": host, "password": TOKEN, "extra": {"kickoff_timeout": 600}}
    )
    from airflow_crew_provider.api import endpoints
    from airflow_crew_provider.hooks.crew import CrewHook
    from airflow_crew_provider.models import WrittenFile

    hook = CrewHook()
    (small := file.with_name("small")).write_bytes(b"x")
    hook.upload("report", str(small))  # imports everything, opens connections
    idle = memory(os.getpid(), "VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # restarts VmHWM
    address = ""

    def upload() -> None:
        nonlocal address
        address = hook.upload("report", str(file))

    seconds = {"up": timed(upload)}
    started = _started(hook, address)
    listed = hook.client.send(endpoints.details(started)).found
    assert listed
    given = next(each for each in listed["files"] if each["direction"] == "in")
    found = WrittenFile(given["name"], given["version"], given["size"], given["sha256"])
    with file.with_name("down").open("wb") as target:
        seconds["down"] = timed(
            lambda: hook.client.send(endpoints.written_file(started, found, "in"), sink=target.write)
        )
    assert file.with_name("down").stat().st_size == file.stat().st_size
    print(json.dumps({**seconds, "memory": memory(os.getpid(), "VmHWM") - idle}))


def _started(hook: Any, address: str) -> str:
    from airflow_crew_provider.api import endpoints
    from airflow_crew_provider.api.requests import Kickoff

    return str(hook.client.send(endpoints.kickoff(Kickoff(inputs={}, files={"report": address}))).kickoff_id)


# --- Starlette alone ---


def bare(port: int, target: Path) -> None:
    """Serve one endpoint that writes each request's body to a file."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def take(request: Request) -> Response:
        with target.open("wb") as file:
            async for piece in request.stream():
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            return Response(str(file.tell()))

    uvicorn.run(Starlette(routes=[Route("/", take, methods=["POST"])]), port=port, log_level="warning")


@contextmanager
def _bare(folder: Path) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.files", "--bare", str(port), "--file", str(folder / "bare")]
    with subprocess.Popen(command) as process:
        try:
            asyncio.run(_reachable(port))
            yield port
        finally:
            process.terminate()


async def _reachable(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            async with _connection(port):
                return
        except OSError:
            await asyncio.sleep(0.1)
    raise TimeoutError("the bare server")


@asynccontextmanager
async def _connection(port: int) -> AsyncIterator[None]:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    yield
    writer.close()


def _posted(port: int, file: Path) -> None:
    import requests

    with file.open("rb") as body:
        answer = requests.post(f"http://127.0.0.1:{port}/", data=body, timeout=600)
    assert int(answer.text) == SIZE


# --- the crew's folder ---


def looks(with_files: bool) -> float:
    """Return the milliseconds that the looks of a crew take, of which some find a new file."""
    from crew_service.crewai.output_files import OutputFolder

    with tempfile.TemporaryDirectory() as name:
        folder, sent = OutputFolder(Path(name), SIZE), list[Any]()
        seconds = 0.0
        for call in range(CALLS):
            if with_files and call < FILES:
                (Path(name) / f"{call}.md").write_text("x" * 10_000)
            seconds += timed(lambda: folder.send_changes(sent.append, "task"))
        assert len(sent) == (FILES if with_files else 0)
    return seconds * 1000


def run(full: bool) -> str:
    rounds = 7 if full else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "report"
        with file.open("wb") as content:
            for _ in range(SIZE // 1_000_000):
                content.write(os.urandom(1_000_000))
        copies = turns.in_turn(_cases(folder, file), rounds)
    turns.keep("files", copies.of)
    rows = [
        [
            case,
            copies.shown(case, "MB/s"),
            _shown(copies, case, "provider"),
            _shown(copies, case, "service"),
        ]
        for case in copies.of
    ]
    table = turns.table(["100 MB", "MB/s", "memory of the provider", "of the service"], rows)
    if not find_spec("crewai"):
        return table
    empty, filled = looks(with_files=False), looks(with_files=True)
    return f"{table}\n\n{CALLS} looks into an empty folder take {empty:.0f} ms; with {FILES} files, {filled:.0f} ms."


def _shown(copies: turns.Turns, case: str, figure: str) -> str:
    return f"{copies.median(case, figure):.0f} MiB" if figure in copies.of[case][0] else ""


def _cases(folder: Path, file: Path) -> dict[str, Callable[[], turns.Figures]]:
    def of(seconds: float, **more: float) -> turns.Figures:
        return {"MB/s": SIZE / 1e6 / seconds, **more}

    def copied(*options: str) -> turns.Figures:
        command = ["cp", str(file), str(folder / "copy")]
        return of(
            timed(
                lambda: [subprocess.run(each, check=True) for each in (command, *([list(options)] if options else []))]
            )
        )

    def through_starlette() -> turns.Figures:
        with _bare(folder) as port:
            return of(timed(lambda: _posted(port, file)))

    measured: dict[str, float] = {}

    def sent() -> turns.Figures:
        measured.clear()
        measured.update(_through_both(folder, file))
        assert max(measured["memory"], measured["of service"]) < MOST_MEMORY, measured
        return of(measured["up"], provider=measured["memory"], service=measured["of service"])

    return {
        "`cp`": copied,
        "`cp`, `sync`": lambda: copied("sync", str(folder / "copy")),
        "Starlette, `fsync`": through_starlette,
        "provider to service": sent,
        "service to provider": lambda: of(measured["down"]),
    }


def _through_both(folder: Path, file: Path) -> dict[str, float]:
    with serving(folder, CREW, *LIMITS) as (process, port):
        idle = memory(process, "VmRSS")
        Path(f"/proc/{process}/clear_refs").write_text("5")
        command = [sys.executable, "-m", "benchmarks.files", "--host", f"http://127.0.0.1:{port}", "--file", str(file)]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        return {**json.loads(told), "of service": memory(process, "VmHWM") - idle}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more turns")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        bare(given.bare, given.file)
    elif given.host:
        worker(given.host, given.file)
    else:
        print(run(given.full))
