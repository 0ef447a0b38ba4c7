"""Row S38: the machine is out of files, threads or memory. New work waits or is refused, and nothing ends for it."""

from __future__ import annotations

import errno
import json
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from crew_client import PLAIN, Command, Receiver, Serve, eventually, figure
from stand_in_crew import StandInCrew
from test_service_fairness import silence, store_webhooks

from crew_service.cli import main
from crew_service.engine import machine
from crew_service.engine.background import Background
from crew_service.engine.crew import Completed, Job, Report

pytestmark = [pytest.mark.slow, pytest.mark.row("S38")]
TOKEN = "a-token-of-the-organization"
NO_FILE = OSError(errno.EMFILE, "Too many open files")
NO_PROCESS = OSError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize(
    ("error", "is_trouble"),
    [
        (NO_FILE, True),
        (NO_PROCESS, True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("cannot schedule new futures"), False),
        (OSError(errno.ENOENT, "No such file"), False),
        (ConnectionResetError(errno.ECONNRESET, "reset"), False),
    ],
)
def test_what_counts_as_the_machines_trouble(error: Exception, is_trouble: bool) -> None:
    assert machine.is_trouble(error) is is_trouble


@pytest.mark.parametrize("files", [64, 256, 1024, 20_000])
def test_connections_in_and_out_leave_files_for_the_rest(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda limit: (files, files))
    assert machine.connections_out() == min(256, files // 4)
    assert machine.connections_in(None) + machine.connections_out() <= files - files // 4


class Keeper(BaseHTTPRequestHandler):
    """Takes a webhook and keeps its connection for the next."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar[set[Any]] = set()

    def do_POST(self) -> None:
        self.connections.add(self.client_address)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *parts: Any) -> None:
        pass


@pytest.fixture
def keepers() -> Iterator[int]:
    """The port of receivers at every address of this machine."""
    server = ThreadingHTTPServer(("0.0.0.0", 0), Keeper)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def addresses(number: int, port: int) -> list[str]:
    return [f"http://127.1.{each // 250}.{each % 250 + 1}:{port}/" for each in range(number)]


def open_files(service: Command) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


@pytest.mark.long
def test_connections_out_are_closed_when_nothing_more_is_sent(
    command: Callable[..., Command], keepers: int, tmp_path: Path
) -> None:
    """As many receivers as the process has files."""
    database = str(tmp_path / "service.db")
    store_webhooks(database, "mallory", addresses(300, keepers))
    service = command("--token", TOKEN, "--db", database, files=300)
    client = service.client(TOKEN)
    kickoff_ids = [client.kickoff() for _ in range(5)]
    eventually(lambda: figure(client, "webhooks_waiting") == 0, "delivery")
    assert open_files(service) < 150
    for kickoff_id in kickoff_ids:
        client.until(kickoff_id, "pending")
    assert "Too many open files" not in service.log.read_text()


def test_webhooks_to_one_receiver_share_few_connections_and_close_them(
    command: Callable[..., Command], keepers: int, tmp_path: Path
) -> None:
    database = str(tmp_path / "service.db")
    store_webhooks(database, "mallory", [f"http://127.0.0.1:{keepers}/{number}" for number in range(100)])
    Keeper.connections.clear()
    service = command("--token", TOKEN, "--db", database)
    client = service.client(TOKEN)
    eventually(lambda: figure(client, "webhooks_waiting") == 0, "delivery")
    assert len(Keeper.connections) < 50
    eventually(lambda: not client_connections(service, keepers), "an end of the connections")


def client_connections(service: Command, port: int) -> list[str]:
    """List the connections of a service to a port."""
    lines = [line.split() for line in Path(f"/proc/{service.process.pid}/net/tcp").read_text().splitlines()[1:]]
    return [line[1] for line in lines if line[2].endswith(f":{port:04X}") and line[3] == "01"]


@pytest.mark.long
def test_a_receiver_that_never_reads_leaves_no_open_connection(serve: Serve) -> None:
    """What was to be sent would wait in the connection for as long as the receiver is there."""
    client = serve({"tasks": [{"id": "t", "output": "x" * 8_000_000}]}, webhook_attempts=1, webhook_timeout=0.5)
    with silence() as port:
        for address in addresses(4, port):
            client.kickoff(taskWebhookUrl=address)
        eventually(lambda: figure(client, "webhooks_given_up") == 4, "sends that are given up")
        eventually(lambda: not connections_to(port), "an end of the connections")


def connections_to(port: int) -> list[str]:
    """List the connections of this process to a port, without those that the kernel alone still has."""
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [line[1] for line in lines if line[2].endswith(f":{port:04X}") and line[9] != "0"]


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Threads whose names begin so cannot start."""
    names: set[str] = set()
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if any(thread.name.startswith(name) for name in names):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    yield names
    names.clear()


@pytest.mark.long
def test_an_execution_whose_thread_cannot_start_waits_in_the_queue(
    serve: Serve, no_threads: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(PLAIN)
    no_threads.add("crew-")
    kickoff_ids = [client.kickoff() for _ in range(5)]
    eventually(lambda: "executions on hold" in caplog.text, "a thread that cannot start")
    eventually(lambda: figure(client, 'executions{state="queued"}') == 5, "the return to the queue")
    no_threads.clear()
    for kickoff_id in kickoff_ids:
        client.until(kickoff_id, "completed")


@pytest.mark.long
@pytest.mark.parametrize("name", ["outbox", "dispatcher", "printed"])
def test_a_thread_that_cannot_start_is_shown_and_starts_later(
    serve: Serve, receiver: Receiver, no_threads: set[str], name: str
) -> None:
    no_threads.add(name)
    client = serve(PLAIN)
    eventually(lambda: client.get("/readyz").status_code == 503, "the notice")
    assert repr(name) in client.get("/readyz").json()["detail"]
    assert client.get("/livez").status_code == 200
    client.kickoff(crewWebhookUrl=f"{receiver.url}/crew")
    no_threads.clear()
    eventually(lambda: receiver.bodies("/crew"), "the webhook")
    eventually(lambda: client.get("/readyz").status_code == 200, "the end of the trouble")


UNLUCKY_WORK = """
import sys, threading
from crew_service.cli import main

start, refused = threading.Thread.start, []

def start_or_refuse(thread):
    if thread.name.startswith("dispatcher") and not refused:
        refused.append(thread)
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = start_or_refuse
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_a_machine_that_only_works_starts_its_thread_later(
    tmp_path: Path, postgresql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain.json").write_text(json.dumps(PLAIN))

    def said(*words: str) -> Any:
        capsys.readouterr()
        assert main([*words, "--db", postgresql, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    kickoff_id = said("kickoff", "topic=AI")["kickoff_id"]
    command = [sys.executable, "-c", UNLUCKY_WORK, "work", "--db", postgresql, "--crew", "plain.json"]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, cwd=tmp_path, stderr=log) as process:
        try:
            eventually(lambda: said("status", kickoff_id)["state"] == "completed", "the end of the execution")
        finally:
            process.terminate()
    assert process.returncode == 0
    assert "cannot start; trying again" in (tmp_path / "log").read_text()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_starts_again() -> None:
    ends = [SystemExit(), SystemExit()]
    worked = threading.Event()

    def step() -> None:
        if ends:
            raise ends.pop()
        worked.set()

    loop = Background("a thread", step, pause=0.01)
    loop.start()
    try:
        eventually(lambda: loop.problem, "the end of the thread")
        eventually(lambda: loop.watch() or worked.is_set(), "another start")
        assert loop.problem is None
    finally:
        loop.stop()
    assert loop.problem is None


def test_a_step_may_fail_any_number_of_times() -> None:
    failures = 1_100
    worked = threading.Event()

    def step() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ValueError("not yet")
        worked.set()

    loop = Background("a thread", step, pause=0.0, longest=0.0)
    loop.start()
    try:
        eventually(lambda: loop.problem or worked.is_set(), "a step that succeeds")
        assert loop.problem is None
    finally:
        loop.stop()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_an_outbox_that_fails_unforeseen_goes_on(
    serve: Serve, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(PLAIN)
    monkeypatch.setattr("crew_service.engine.outbox.IDLE", "not a number")
    client.kickoff(crewWebhookUrl=f"{receiver.url}/first")
    eventually(lambda: "outbox failed" in caplog.text, "the error")
    monkeypatch.undo()
    client.kickoff(crewWebhookUrl=f"{receiver.url}/second")
    eventually(lambda: receiver.bodies("/first") and receiver.bodies("/second"), "both webhooks")


class Unlucky(StandInCrew):
    """A crew for which the machine has nothing left at first."""

    isolation, inputs = "process", ()

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def run(self, job: Job, report: Report) -> Completed:
        if self.errors:
            raise self.errors.pop()
        return Completed("done")


def test_an_execution_for_which_nothing_is_left_goes_on_afterwards(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PAUSE", 0.1)
    crew = Unlucky(NO_FILE, NO_PROCESS, MemoryError(), RuntimeError("can't start new thread"))
    client = serve(crew=crew)
    client.until(client.post("/kickoff", {"inputs": {}}).json()["kickoff_id"], "completed")
    assert not crew.errors


class Crowded(StandInCrew):
    """A crew for whose large executions the disk has no room."""

    isolation = "process"

    def run(self, job: Job, report: Report) -> Completed:
        if job.inputs["topic"] == "large":
            raise OSError(errno.ENOSPC, "No space left on device")
        return Completed("done")


def test_executions_that_can_never_begin_hold_up_no_others(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PAUSE", 0.1)
    client = serve(crew=Crowded(), workers=2)
    large = [client.kickoff("large") for _ in range(2)]
    small = [client.kickoff("small") for _ in range(5)]
    for each in small:
        client.until(each, "completed")
    for each in large:
        assert client.status(each)["status"] == "running", "they go on as soon as there is room"


def test_what_an_inline_crew_raises_itself_is_its_own(serve: Serve) -> None:
    crew = Unlucky(NO_FILE)
    crew.isolation = "inline"
    client = serve(crew=crew)
    record = client.until(client.post("/kickoff", {"inputs": {}}).json()["kickoff_id"], "error")
    assert "Too many open files" in str(record)


def test_a_request_for_which_no_thread_is_left_is_refused(serve: Serve, no_threads: set[str]) -> None:
    client = serve(PLAIN)
    no_threads.add("AnyIO")
    answer = client.post("/kickoff", {"inputs": {"topic": "AI"}})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json() == {"detail": machine.NONE_LEFT}
    no_threads.clear()
    client.until(client.kickoff(), "completed")


def test_running_out_of_files_costs_a_webhook_no_delivery_attempt(
    serve: Serve, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(PLAIN, webhook_attempts=1)
    is_full = threading.Event()
    is_full.set()
    create = socket.socket.__init__

    def refused(self: socket.socket, *args: Any, **options: Any) -> None:
        if threading.current_thread().name == "outbox" and is_full.is_set():
            raise NO_FILE
        create(self, *args, **options)

    monkeypatch.setattr(machine, "PAUSE", 0.1)
    monkeypatch.setattr(socket.socket, "__init__", refused)
    client.until(client.kickoff(crewWebhookUrl=f"{receiver.url}/crew"), "completed")
    eventually(lambda: figure(client, "webhooks_waiting") == 1, "the webhook")
    is_full.clear()
    eventually(lambda: receiver.bodies("/crew"), "the webhook")
    assert figure(client, "webhooks_given_up") == 0


def space(service: Command) -> int:
    """Return how many bytes it may still map, which are too few for a thread."""
    used = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{service.process.pid}/status").read_text())
    assert used
    return int(used[1]) * 1024 + 2 * 1024 * 1024


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "left"), [(resource.RLIMIT_AS, space), (resource.RLIMIT_NOFILE, open_files)], ids=["memory", "files"]
)
def test_exhausted_system_resources_lose_no_execution(
    command: Callable[..., Command], receiver: Receiver, tmp_path: Path, kind: int, left: Callable[[Command], int]
) -> None:
    (tmp_path / "crew.json").write_text('{"tasks": [{"id": "t", "seconds": 1.0, "output": "%s"}]}' % ("x" * 100_000))
    service = command("--token", TOKEN, "--crew", "crew.json", "--workers", "40")
    client = service.client(TOKEN)
    assert client.get("/readyz").status_code == 200  # on the connection that the kickoffs use
    before = resource.prlimit(service.process.pid, kind)
    resource.prlimit(service.process.pid, kind, (left(service), before[1]))
    answers = [client.post("/kickoff", {"inputs": {}, "crewWebhookUrl": f"{receiver.url}/end"}) for _ in range(40)]
    kickoff_ids = [answer.json()["kickoff_id"] for answer in answers if answer.ok]
    assert {answer.status_code for answer in answers} <= {200, 503}
    is_short = "executions on hold|cannot be|cannot start|out of system resource"
    assert len(kickoff_ids) < 40 or eventually(lambda: re.search(is_short, service.log.read_text()), "a shortage")
    resource.prlimit(service.process.pid, kind, before)
    for kickoff_id in kickoff_ids:
        client.until(kickoff_id, "completed")
    eventually(lambda: len(receiver.bodies("/end")) == len(kickoff_ids), "the webhooks")
    eventually(lambda: client.get("/readyz").status_code == 200, "the end of the trouble")
