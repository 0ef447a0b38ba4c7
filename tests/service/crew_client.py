"""A client of the crew service over a real socket, the command in a process, and a receiver of webhooks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests
from databases import new_sqlite
from fork_template import ForkedCommand
from sqlalchemy import text
from sqlalchemy.engine import Connection

from scripts.stack.waiting import PATIENCE, wait_until

GATED = {
    "inputs": ["topic"],
    "tasks": [
        {
            "id": "research_task",
            "agent": "Researcher",
            "description": "Look into {topic}",
            "output": "Notes on {topic}",
        },
        {
            "id": "draft_task",
            "agent": "Writer",
            "human_input": True,
            "output": "Draft {revision} on {topic}",
            "revised": "Draft {revision} on {topic}, after: {feedback}",
        },
        {"id": "publish_task", "agent": "Editor", "output": '{"title": "All on {topic}"}'},
    ],
}
PLAIN = {"inputs": ["topic"], "tasks": [{"id": "only_task", "agent": "Writer", "output": "All on {topic}"}]}
SLOW = {"tasks": [{"id": "slow_task", "agent": "Writer", "seconds": 60, "output": "late"}]}


def waits_for_lock(connection: Connection) -> bool:
    """Whether a statement waits for a lock in this database: other tests have databases on the same server."""
    here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
    query = "SELECT count(*) FROM pg_locks waiting JOIN pg_locks held USING (pid) WHERE NOT waiting.granted AND held"
    return bool(connection.execute(text(f"{query}.database = {here}")).scalar())


def eventually(status_row: Callable[[], Any], what: str) -> Any:
    """The first true answer of `status_row`."""
    return wait_until(status_row, what, pause=0.01)


def an_hour_passes(database: Path) -> None:
    """Let what is stored in a SQLite file be an hour older."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "UPDATE executions SET created_at = created_at - 3600, updated_at = updated_at - 3600, "
            "started_at = started_at - 3600, counted_at = counted_at - 3600"
        )


class Client:
    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Authorization"] = f"Bearer {token}"

    def holding(self, token: str) -> Client:
        return Client(self.url, token)

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.session.get(self.url + path, timeout=PATIENCE, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        return self.session.post(self.url + path, json=body, timeout=PATIENCE, **options)

    def kickoff(self, topic: str = "AI", **more: Any) -> str:
        answer = self.post("/kickoff", {"inputs": {"topic": topic}, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["kickoff_id"]

    def status(self, kickoff_id: str) -> dict[str, Any]:
        return self.get(f"/status/{kickoff_id}").json()

    def until(self, kickoff_id: str, word: str) -> dict[str, Any]:
        """The first status record with that word."""

        def status_row() -> dict[str, Any] | None:
            record = self.status(kickoff_id)
            return record if word in (record.get("state"), record.get("status")) else None

        return eventually(status_row, f"{kickoff_id} reading {word}")

    def resume(self, execution_id: str, *, approve: bool = True, feedback: str = "", **more: Any) -> requests.Response:
        body = {
            "execution_id": execution_id,
            "task_id": "draft_task",
            "human_feedback": feedback,
            "is_approve": approve,
        }
        return self.post("/resume", {**body, **more})


Serve = Callable[..., Client]


def ended(folder: Path, words: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Return what a command of the service has printed at its end."""
    with tempfile.TemporaryFile("w+") as log:
        process = ForkedCommand(words, folder, log.fileno(), environment)
        with process.stdout:
            printed = process.stdout.read()
        code = process.wait(PATIENCE)
        log.seek(0)
        return subprocess.CompletedProcess(words, code, printed, log.read())


class Command:
    """`airflow-crew-service serve` in a process of its own; a fresh one has an interpreter of its own too."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        environment: dict[str, str] | None = None,
        files: int | None = None,
        fresh: bool = False,
    ) -> None:
        self.log = folder / f"log-{len(list(folder.glob('log-*')))}"
        words = ["serve", "--port", "0", *options]
        given = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[str] | ForkedCommand
        with self.log.open("w") as log:
            if fresh:
                command = [sys.executable, "-m", "crew_service", *words]
                self.process = subprocess.Popen(
                    command, cwd=folder, stdout=subprocess.PIPE, stderr=log, env=given, text=True
                )
            else:
                if "--db" not in options and "CREW_SERVICE_DB" not in given:
                    new_sqlite(folder / "crew-service.db")
                self.process = ForkedCommand(words, folder, log.fileno(), given, files)
        eventually(lambda: "startup complete" in self.log.read_text() or self.process.poll(), "the start")
        assert self.process.poll() is None, self.log.read_text()
        self.url = self.log.read_text().split(" dialect) at ", 1)[1].split(";", 1)[0]

    def client(self, token: str, crew: str = "") -> Client:
        """Return a client of the one crew, or of the first of several; or of that of a name."""
        return Client(f"{self.url.partition('/crews/')[0]}/crews/{crew}" if crew else self.url, token)

    @staticmethod
    def refused(
        folder: Path, *options: str, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A start that is expected to end at once."""
        return ended(folder, ["serve", "--port", "0", *options], {**os.environ, **(environment or {})})

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)


class Receiver:
    """Takes webhooks; `answers` holds what is to be answered first, an int for a code or a header for a redirect."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.raw: list[bytes] = []
        self.answers: list[int | str] = []
        self.answered = 0
        self.hold = threading.Event()
        self.hold.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.raw.append(body)
                receiver.taken.append((self.path, dict(self.headers), json.loads(body)))
                answer = receiver.answers.pop(0) if receiver.answers else 200
                receiver.hold.wait(PATIENCE)
                receiver.answered += 1
                self.send_response(answer if isinstance(answer, int) else 307)
                if isinstance(answer, str):
                    self.send_header("Location", answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *parts: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for taken, _, body in self.taken if taken == path]

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()


def figure(client: Client, name: str) -> float:
    """Return a metric of the service."""
    return float(client.get("/metrics").text.split(f"\ncrew_service_{name} ", 1)[1].split("\n", 1)[0])
