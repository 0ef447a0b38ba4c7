"""A status server in a separate process, which responds as cheaply as possible and counts requests and connections.

`/stats` returns the counts, including the `waits` polled since the last `/forget`. Options: TLS, seconds of keep-alive,
seconds of latency, a batch endpoint, a dead server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import requests

CREW_STATUS = {
    "state": "RUNNING",
    "status": "Task is Running",
    "result": None,
    "result_json": None,
    "progress": {"unit": "task", "completed": 1, "total": 2, "remaining": 1, "current": "summary_task"},
}
DATABRICKS_STATUS = {
    "job_id": 1,
    "run_id": 1,
    "state": {"life_cycle_state": "RUNNING", "state_message": "In run", "user_cancelled_or_timedout": False},
    "run_page_url": "https://example.com/run/1",
}
BATCH_HEADER = "Crew-Batch-Status"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def answer(body: Any, status: str = "200 OK", head: str = "") -> bytes:
    text = json.dumps(body)
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{head}Content-Length: {len(text)}\r\n\r\n{text}"
    ).encode()


@dataclass
class Options:
    """The behavior of a server; times are in seconds."""

    tls: tuple[str, str] | None = None
    keep_alive: float = 0.0
    latency: float = 0.0
    batch: bool = False
    dead: bool = False


class Server:
    """Produces the responses and keeps the counts."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.requests = self.polls = self.connections = 0
        self._polled_at: dict[bytes, float] = {}
        self._gaps: list[float] = []
        self._waits: set[bytes] = set()  # polled since the last `/forget`
        offer = f"{BATCH_HEADER}: /statuses\r\n" if options.batch else ""
        self._status = answer(CREW_STATUS, head=offer)
        self._databricks = answer(DATABRICKS_STATUS)
        self._missing = answer({"detail": "not yet"}, "404 Not Found")

    def answer_to(self, target: bytes) -> bytes:
        if target == b"/stats":
            return answer(self._stats())
        if target == b"/forget":
            self._waits.clear()
            return answer({})
        self.requests += 1
        if target.startswith(b"/statuses?ids="):
            return self._batch(target)
        self.polls += 1
        if target.startswith(b"/status/"):
            self._note(target)
            return self._status
        return self._databricks if target.startswith(b"/api/") else self._missing

    def _note(self, target: bytes) -> None:
        now = time.monotonic()
        if target in self._polled_at:
            self._gaps.append(now - self._polled_at[target])
        self._polled_at[target] = now
        self._waits.add(target)

    def _stats(self) -> dict[str, float]:
        """Return the counts, and the 99th percentile of the gaps between a wait's polls since the previous call."""
        gaps, self._gaps = sorted(self._gaps), []
        counts = {"requests": self.requests, "polls": self.polls, "connections": self.connections}
        counts["waits"] = len(self._waits)
        return {**counts, "gap_p99": gaps[int(len(gaps) * 0.99)] if gaps else 0.0}

    def _batch(self, target: bytes) -> bytes:
        ids = unquote(target.decode().partition("=")[2]).split(",")
        self.polls += len(ids)
        return answer({"statuses": {each: {"code": 200, "body": CREW_STATUS} for each in ids}})


class Connection(asyncio.Protocol):
    """An HTTP/1.1 connection: one request after another, with or without a body."""

    def __init__(self, server: Server) -> None:
        self._server, self._read, self._idle = server, b"", None

    def connection_made(self, transport: Any) -> None:
        self._transport: Any = transport
        self._server.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._quiet()

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, rest = self._read.partition(b"\r\n\r\n")
        if not end or self._server.options.dead:
            return
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(rest) < size:
            return
        self._read = rest[size:]
        self._quiet()
        said = self._server.answer_to(head.split(b" ", 2)[1])
        if self._server.options.latency:
            asyncio.get_running_loop().call_later(self._server.options.latency, self._say, said)
        else:
            self._say(said)

    def _say(self, said: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(said)
        if self._server.options.keep_alive:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._server.options.keep_alive, self._transport.close)

    def _quiet(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


async def serve(options: Options) -> None:
    context = None
    if options.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*options.tls)
    server = Server(options)
    listening = await asyncio.get_running_loop().create_server(
        lambda: Connection(server), "127.0.0.1", 0, backlog=4096, ssl=context
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


@dataclass
class Running:
    """A running server, as seen by its user."""

    url: str
    ca_file: str | None = None

    def stats(self) -> dict[str, float]:
        return requests.get(f"{self.url}/stats", verify=self.ca_file or True, timeout=30).json()

    def forget(self) -> None:
        """Restart the count of waits that are polled."""
        requests.get(f"{self.url}/forget", verify=self.ca_file or True, timeout=30).raise_for_status()


@contextmanager
def running(options: Options | None = None) -> Iterator[Running]:
    """Run a server in a separate process."""
    options = options or Options()
    command = [sys.executable, "-m", __spec__.name, json.dumps(vars(options))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        scheme = "https" if options.tls else "http"
        yield Running(f"{scheme}://127.0.0.1:{int(process.stdout.readline())}", options.tls and options.tls[0])
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("options", type=json.loads)
    asyncio.run(serve(Options(**parser.parse_args().options)))
