"""Measures the cost of traces: `python -m benchmarks.traces [--full]`.

Requests go in turn, over persistent connections, to two crew services: one that sends its spans to a receiver and one
without traces. A hook sends kickoffs and polls to a bare server within its task's span, with Airflow's traces on and
off. The CPU time of a kickoff at the service includes its execution, which has one scripted task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.harness import turns
from benchmarks.service_load import TOKEN, Side, ask, cpu_seconds, request
from scripts.stack.ports import free_port

OFF, ON = "traces off", "traces on"
CPU = "cpu_us"
TASK = {"tasks": [{"id": "write", "output": "x"}]}
PARENT = "Traceparent: 00-{:032x}-{:016x}-01\r\n"
CALLS = 200  # of a hook per turn
PAUSE, IDLE = 0.5, 0.03  # seconds, and the CPU seconds used meanwhile


class Answers(BaseHTTPRequestHandler):
    """Accepts spans, and answers kickoffs and polls immediately."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._send({"kickoff_id": "k-1"})

    def do_GET(self) -> None:
        self._send({"status": "running"})

    def _send(self, body: dict[str, str]) -> None:
        said = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *parts: Any) -> None:
        pass


@contextmanager
def answering() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@contextmanager
def serving(folder: Path, crew: Any = TASK, *options: str, **environment: str) -> Iterator[tuple[int, int]]:
    """Serve a crew in a separate process; yield the process id and the port."""
    port = free_port()
    (folder / f"{port}.json").write_text(json.dumps(crew))
    command = ["-m", "crew_service", "serve", "--crew", str(folder / f"{port}.json"), "--port", str(port)]
    command += ["--db", str(folder / f"{port}.db"), *options]
    env = {**os.environ, "CREW_SERVICE_TOKEN": TOKEN, **environment}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    try:
        asyncio.run(ready(port))
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(30)


async def ready(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            streams = await asyncio.open_connection("127.0.0.1", port)
            if (await ask(*streams, request("GET", "/readyz")))[0] == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.02)
    raise TimeoutError("the crew service")


def traced(sent: bytes, number: int) -> bytes:
    return sent.replace(b"Content-Type", PARENT.format(number + 1, number + 1).encode() + b"Content-Type", 1)


def of_service(folder: Path, receiver: str, rounds: int) -> dict[str, turns.Turns]:
    kickoff = request("POST", "/kickoff", {"inputs": {}})
    with ExitStack() as stack:
        at = {OFF: stack.enter_context(serving(folder))}
        at[ON] = stack.enter_context(serving(folder, OTEL_EXPORTER_OTLP_ENDPOINT=receiver))
        polled = {case: asyncio.run(_started(port, kickoff)) for case, (_, port) in at.items()}
        sent = {
            "status request": {case: [request("GET", f"/status/{polled[case]}")] for case in at},
            "kickoff": {OFF: [kickoff], ON: [traced(kickoff, number) for number in range(64)]},
        }
        return {
            what: turns.in_turn({case: turn_of(*at[case], each[case]) for case in at}, rounds)
            for what, each in sent.items()
        }


async def _started(port: int, kickoff: bytes) -> str:
    streams = await asyncio.open_connection("127.0.0.1", port)
    return str(json.loads((await ask(*streams, kickoff))[1])["kickoff_id"])


def turn_of(process: int, port: int, sent: list[bytes]) -> Callable[[], turns.Figures]:
    def turn() -> turns.Figures:
        side, before = Side(process, port, sent), cpu_seconds(process)
        asyncio.run(side.turn())
        return {CPU: (cpu_once_idle(process) - before) / side.answers * 1e6}

    return turn


def cpu_once_idle(process: int) -> float:
    """Wait until a process is nearly idle, so that its executions have ended; return its CPU time so far."""
    used, more = cpu_seconds(process), 1.0
    while more > IDLE:
        time.sleep(PAUSE)
        used, more = cpu_seconds(process), cpu_seconds(process) - used
    return used


def of_hook(base_url: str, rounds: int) -> dict[str, turns.Turns]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from airflow_crew_provider.hooks.crew import CrewHook

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(provider)
    connection = {"conn_type": "crew", "host": base_url, "password": TOKEN}
    os.environ.update(AIRFLOW_CONN_CREW_DEFAULT=json.dumps(connection), AIRFLOW__TRACES__OTEL_ON="False")
    hook = CrewHook()

    def of(call: Callable[[], Any], on: bool) -> Callable[[], turns.Figures]:
        def turn() -> turns.Figures:
            os.environ["AIRFLOW__TRACES__OTEL_ON"] = str(on)
            with trace.get_tracer("task").start_as_current_span("task"):
                began = time.process_time()
                for _ in range(CALLS):
                    call()
                return {CPU: (time.process_time() - began) / CALLS * 1e6}

        return turn

    calls = {"poll": lambda: hook.get_status("k-1"), "kickoff": lambda: hook.kickoff({})}
    return {what: turns.in_turn({OFF: of(call, False), ON: of(call, True)}, rounds) for what, call in calls.items()}


def run(full: bool) -> str:
    rounds = 15 if full else 5
    with answering() as url, tempfile.TemporaryDirectory() as folder:
        measured = {
            **{f"{what} at the crew service": each for what, each in of_service(Path(folder), url, rounds).items()},
            **{f"{what} of a hook, and its server": each for what, each in of_hook(url, rounds).items()},
        }
    turns.keep("traces", {what: each.of for what, each in measured.items()})
    rows = [
        f"| {what} | {each.median(OFF, CPU):,.0f} µs | {each.median(ON, CPU):,.0f} µs | {each.ratio(ON, OFF, CPU)} |"
        for what, each in measured.items()
    ]
    head = ["| CPU of one | traces off | traces on | ratio |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more turns")
    print(run(parser.parse_args().full))
