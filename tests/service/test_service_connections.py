"""Rows S11, S14, S17, S20, S35: neither a hostile body nor a thousand half-sent requests keep others from being served.

Nor does a crowd that sends requests and reads no answer, nor do bodies and trailers that do not end.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import select
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from crew_client import GATED, PLAIN, Client, Command, Serve, eventually
from sampling import sampled

from scripts.stack.waiting import FACTOR, PATIENCE

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-the-organization"
MIB = 1024 * 1024
SERVED = 5.0 * FACTOR  # seconds in which others are served, on a busy machine too


def body(inputs: bytes) -> bytes:
    return b'{"inputs": {"topic": ' + inputs + b"}}"


NAMES = b", ".join(b'"n%d": 0' % number for number in range(25_000))
HOSTILE = {
    "25,000 names and one of them twice": body(b"{" + NAMES + b', "n24999": 0}'),
    "25,000 names that the service does not know": b"{" + NAMES + b"}",
    "names that read like other spellings": b"{" + b", ".join(b'"a_%dB": 0' % n for n in range(60_000)) + b"}",
    "one name of a mebibyte": b'{"' + b"aB_" * (MIB // 3 - 10) + b'": 0}',
    "empty lists": body(b"[" + b"[]," * (MIB // 3 - 30) + b"[]]"),
    "empty texts": body(b"[" + b'"",' * (MIB // 3 - 30) + b'""]'),
    "digits": body(b"1" * (MIB - 60)),
    "exponents": body(b"[" + b"1e308," * (MIB // 6 - 30) + b"1]"),
    "a deep list": body(b"[" * (MIB - 60)),
    "a deep object": b'{"a":' * (MIB // 5),
    "quotes in a text without an end": b'{"' + rb"\"" * (MIB // 2 - 10),
    "lists beside escapes": body(b'["\\u0041", ' + b"[]," * (MIB // 3 - 30) + b"[]]"),
    "escapes": body(b'"' + rb"\u0041" * (MIB // 6 - 10) + b'"'),
    "an address of a mebibyte": b'{"inputs": {"topic": "x"}, "taskWebhookUrl": "http://'
    + b"a.@:" * (MIB // 4 - 20)
    + b'"}',
    "a strategy of a mebibyte": b'{"inputs": {"topic": "x"}, "humanInputWebhook": {"url": "http://a", '
    b'"authentication": {"strategy": "' + b"x" * (MIB - 200) + b'"}}}',
}  # fmt: skip


@contextlib.contextmanager
def watched(client: Client, path: str = "/healthz") -> Iterator[list[float]]:
    """The seconds that each of another caller's requests took meanwhile."""
    took: list[float] = []
    over = threading.Event()

    def ask() -> None:
        other = client.holding(client.token)
        while not over.is_set():
            began = time.monotonic()
            assert other.get(path).status_code == 200
            took.append(time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join(PATIENCE)


ORDINARY = body(b"[" + b"1, " * (MIB // 3 - 30) + b"1]")  # as long as the hostile ones, and nothing is wrong with it
TIMES_AS_LONG = 60  # of an ordinary body's answer; lists take twenty times as long, quadratic work a hundred times
TURNS = 3  # a machine that is busy with other tests stalls once, a fault is slow in every turn


@pytest.mark.row("S11")
@pytest.mark.parametrize("dialect", ["spec", pytest.param("live", marks=pytest.mark.long)])  # both read bodies alike
def test_hostile_json_is_answered_quickly_and_so_is_everybody_else(serve: Serve, dialect: str) -> None:
    client = serve(GATED, dialect=dialect, user_tokens=[("ann", "ann-token-0123456789")])
    ann = client.holding("ann-token-0123456789")

    def longest_answer(path: str, raw: bytes) -> float:
        """The seconds of the slowest answer, of this one and of those that somebody else got meanwhile."""
        assert len(raw) <= MIB
        with watched(client) as others:
            began = time.monotonic()
            answer = ann.session.post(client.url + path, data=raw, timeout=PATIENCE)
            took = time.monotonic() - began
        assert answer.status_code < 500, answer.text[:200]
        assert len(answer.content) < 10_000
        return max(took, *others)

    late = {}
    for path in ("/kickoff", "/resume"):
        ordinary = max(longest_answer(path, ORDINARY) for _ in range(TURNS))
        for name, raw in HOSTILE.items():
            turns = (longest_answer(path, raw) / ordinary for _ in range(TURNS))
            if not any(quotient < TIMES_AS_LONG for quotient in turns):
                late[name] = path
    assert not late


def half_sent(url: str, text: bytes) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE)
    connection.sendall(text)
    return connection


def answer_on(connection: socket.socket) -> bytes:
    """The next whole response; its head and its body may arrive one after the other."""
    taken = b""
    while b"\r\n\r\n" not in taken:
        part = connection.recv(1)
        assert part, taken
        taken += part
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n", taken)
    assert length, taken
    end = len(taken) + int(length[1])
    while len(taken) < end:
        part = connection.recv(end - len(taken))
        assert part, taken
        taken += part
    return taken


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.row("S14")
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(
    "text",
    sampled(
        [
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
            b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\ntoken=",
            b"",
        ],
        3,
    ),
    ids=["headers", "a form", "nothing"],
)
def test_others_are_served_while_1100_requests_are_half_sent(tmp_path: Path, text: bytes) -> None:
    """None of the half-sent is given up for its age here: without room made for them, others would wait for ever."""
    with patient_service(tmp_path) as (client, _), contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(half_sent(client.url, text))
        for _ in range(20):
            assert client.holding(TOKEN).post("/kickoff", {"inputs": {"topic": "AI"}}).status_code == 200


@contextlib.contextmanager
def patient_service(folder: Path, files: int = 1024) -> Iterator[tuple[Client, int]]:
    """A client and the id of a process that may open so many files, and waits for requests longer than any test."""
    program = (
        "import resource, sys; from crew_service.local import running_service\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))\n"
        f"limits = dict(header_seconds={9 * PATIENCE}, body_seconds={9 * PATIENCE})\n"
        f"with running_service(token={TOKEN!r}, **limits) as service:\n"
        "    print(service.url, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Client(process.stdout.readline().strip(), TOKEN), process.pid  # type: ignore[union-attr]
        finally:
            process.kill()


@pytest.mark.row("S14")
def test_a_request_with_late_headers_is_ended(serve: Serve) -> None:
    client = serve(PLAIN, header_seconds=0.3)
    with half_sent(client.url, b"GET /healthz HTTP/1.1\r\nX-Slow: ") as connection:
        answer = answer_on(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1]) == {
            "detail": "The headers did not arrive within 0.3 seconds."
        }
        assert connection.recv(1000) == b""
    with half_sent(client.url, b"") as connection:
        assert connection.recv(1000) == b""
    with half_sent(client.url, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        assert answer_on(connection).startswith(b"HTTP/1.1 200 ")
        with half_sent(client.url, b"GET /healthz HTTP/1.1\r\nX-Slow: ") as slow:
            assert answer_on(slow).startswith(b"HTTP/1.1 408 "), "so long no headers were due between two requests"
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer_on(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /health")
        assert answer_on(connection).startswith(b"HTTP/1.1 408 ")


def unread(url: str, text: bytes) -> socket.socket:
    """A connection that sends requests and reads nothing."""
    parts = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((parts.hostname, parts.port))
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        connection.send(text)
    return connection


def resident(process_id: int) -> int:
    """Bytes of memory that a process has."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.long
@pytest.mark.row("S17")
def test_slowly_read_statuses_stay_within_bounds_and_others_get_theirs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crew_service.http.unsent.UNSENT_BYTES", 8 * MIB)
    monkeypatch.setattr("crew_service.http.unsent.READ_SECONDS", 2.0 * FACTOR)
    client = serve({"tasks": [{"id": "t", "output": "x" * 2 * MIB}]}, user_tokens=[("ann", "anns-token-0123456789")])
    ann, over = client.holding("anns-token-0123456789"), threading.Event()
    kickoff_id = ann.kickoff()
    ann.until(kickoff_id, "completed")
    slow = f"GET /status/{kickoff_id} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ann.token}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        stack.callback(tracemalloc.stop)
        tracemalloc.start()
        connections = [stack.enter_context(unread(client.url, slow)) for _ in range(40)]

        def read() -> None:
            while not over.wait(0.1):
                for each in connections:
                    with contextlib.suppress(BlockingIOError, ConnectionError):
                        each.recv(1000)

        stack.enter_context(ThreadPoolExecutor(1)).submit(read)
        stack.callback(over.set)
        for _ in range(3):
            assert len(client.get(f"/status/{kickoff_id}").content) > 2 * MIB
        eventually(lambda: any(map(_ended, connections)), "the end of the slowest")
        assert tracemalloc.get_traced_memory()[1] < 30 * MIB


@pytest.mark.long
@pytest.mark.row("S36")
def test_a_user_slowly_reading_large_answers_delays_no_other(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crew_service.http.unsent.UNSENT_BYTES", 8 * MIB)
    monkeypatch.setattr("crew_service.http.unsent.READ_SECONDS", 1000.0)  # nobody is disconnected
    client = serve({"tasks": [{"id": "t", "output": "x" * 2 * MIB}]}, user_tokens=[("ann", "anns-token-0123456789")])
    ann = client.holding("anns-token-0123456789")
    kickoff_id = ann.kickoff()
    ann.until(kickoff_id, "completed")
    slow = f"GET /status/{kickoff_id} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ann.token}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(unread(client.url, slow)) for _ in range(8)]
        eventually(lambda: sum(bool(select.select([each], [], [], 0)[0]) for each in connections) > 4, "full memory")
        for _ in range(3):
            assert client.get("/executions").ok
            assert len(client.get(f"/status/{kickoff_id}").content) > 2 * MIB


UNREAD = {
    "a large answer": b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n" * 4,
    "the document": b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200,
    "small answers": b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n" * 5000,
    "one answer": b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
}


@pytest.mark.row("S20")
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("sent", ["a large answer", "small answers"])
def test_640_unread_connections_leave_others_served_and_memory_bounded(
    command: Callable[..., Command], sent: str
) -> None:
    service = command("--token", TOKEN, files=1024)
    before = resident(service.process.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(640):
            stack.enter_context(unread(service.url, UNREAD[sent]))
        for _ in range(5):
            assert service.client(TOKEN).post("/kickoff", {"inputs": {"topic": "AI"}}).status_code == 200
        grown = resident(service.process.pid) - before
    assert grown < 200 * MIB, f"{grown // MIB} MiB"


@pytest.mark.long
@pytest.mark.row("S20")
@pytest.mark.parametrize("text", UNREAD.values(), ids=UNREAD)
def test_a_connection_whose_answer_nobody_reads_is_ended(serve: Serve, text: bytes) -> None:
    client = serve(PLAIN, header_seconds=0.5)
    with unread(client.url, text) as connection:
        eventually(lambda: _ended(connection), "the end of the connection")


def _ended(connection: socket.socket) -> bool:
    """Whether the other side has ended it, found without reading."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


@pytest.mark.long
@pytest.mark.row("S20")
def test_a_slow_reader_gets_the_whole_answer(serve: Serve) -> None:
    client = serve(PLAIN, header_seconds=1.5)
    request = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with half_sent(client.url, request) as connection:
        taken = b""
        while part := connection.recv(65536):
            taken += part
            time.sleep(0.2)
    head, _, rest = taken.partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(rest) in head.lower() + b"\r\n"


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    text = "".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in ["/healthz", "/unknown"] * 5)
    with half_sent(serve(PLAIN).url, text.encode()) as connection:
        answers = b""
        while answers.count(b"HTTP/1.1 ") < 10:
            answers += connection.recv(65536)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"401"] * 5


def test_a_working_request_keeps_its_connection_when_others_want_one(serve: Serve) -> None:
    client = serve(PLAIN, max_connections=4)
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(half_sent(client.url, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert answer_on(kept).startswith(b"HTTP/1.1 200 ")
        for _ in range(20):
            stack.enter_context(half_sent(client.url, b"GET / HTTP/1.1\r\nX: "))
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer_on(kept).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /healthz HTTP/9.9\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000, 431),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431, id="201 headers"),
    ],
)
def test_what_is_no_request_is_answered_as_json(serve: Serve, text: bytes, code: int) -> None:
    client = serve(PLAIN)
    with half_sent(client.url, text) as connection:
        head, _, rest = answer_on(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % code)
        assert b"content-type: application/json" in head
        assert json.loads(rest)["detail"]


BAD_CHUNKS = [b"xyz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}garbage\r\n0\r\n\r\n", b"-2\r\n{}\r\n0\r\n\r\n"]


@pytest.mark.row("S29")
@pytest.mark.parametrize("before", [b"", b'9\r\n{"inputs"\r\n'], ids=["at first", "after a good one"])
@pytest.mark.parametrize("chunk", sampled(BAD_CHUNKS, 3))
@pytest.mark.parametrize("path", ["/kickoff", "/login"])
def test_a_bad_chunk_is_answered_as_json(
    serve: Serve, caplog: pytest.LogCaptureFixture, path: str, before: bytes, chunk: bytes
) -> None:
    client = serve(PLAIN)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\nTransfer-Encoding: chunked\r\n"
    with half_sent(client.url, head.encode() + b"\r\n" + before) as connection:
        connection.sendall(chunk)
        answer = b""
        while part := connection.recv(4000):
            answer += part
    assert answer.count(b"HTTP/1.1 ") == 1
    head_, _, rest = answer.partition(b"\r\n\r\n")
    assert head_.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head_
    assert json.loads(rest)["detail"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def is_counted(client: Client, code: int) -> bool:
    return f'code="{code}"' in client.get("/metrics").text


def test_a_client_disconnecting_in_mid_body_is_no_service_error(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    client = serve(PLAIN)
    head = f"POST /kickoff HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\nContent-Length: 999\r\n\r\n"
    half_sent(client.url, head.encode() + b'{"inputs"').close()
    eventually(lambda: is_counted(client, 499), "the count")
    assert not is_counted(client, 500)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_body_stalling_after_a_refusal_releases_its_connection(serve: Serve) -> None:
    client = serve(PLAIN, header_seconds=0.3)
    with half_sent(client.url, b"POST /kickoff HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\nhalf") as connection:
        assert answer_on(connection).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"more")
        eventually(lambda: _closed(connection), "the end of the connection")


def _closed(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        return connection.recv(1000) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_metrics_are_for_the_organization(serve: Serve) -> None:
    client = serve(PLAIN, user_tokens=[("ann", "ann-token-0123456789")])
    answer: Any = requests.get(
        f"{client.url}/metrics", headers={"Authorization": "Bearer ann-token-0123456789"}, timeout=PATIENCE
    )
    assert (answer.status_code, "organization" in answer.json()["detail"]) == (403, True)
    assert client.get("/metrics").status_code == 200


CHUNKED = b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ntoken\r\n0\r\n"


def everything(connection: socket.socket) -> bytes:
    taken = b""
    while part := connection.recv(65536):
        taken += part
    return taken


@pytest.mark.row("S35")
@pytest.mark.parametrize("trailer", [b"X: " + b"y" * 65_000, b"X: y\r\n" * 11_000], ids=["one", "many"])
@pytest.mark.parametrize(("path", "code"), [(b"/login", 431), (b"/kickoff", 401)], ids=["awaited", "not awaited"])
def test_trailers_without_end_are_refused_and_hold_nobody_up(
    command: Callable[..., Command], path: bytes, code: int, trailer: bytes
) -> None:
    service = command("--token", TOKEN)

    def send_without_end() -> bytes:
        answer = b""
        with half_sent(service.url, CHUNKED % path + trailer) as connection:
            while True:
                if select.select([connection], [], [], 0)[0]:
                    part = connection.recv(65536)
                    if not part:
                        return answer
                    answer += part
                connection.sendall(trailer if b"\n" in trailer else b"y" * MIB)

    with ThreadPoolExecutor(8) as pool, watched(service.client(TOKEN), "/livez") as took:
        answers = [sent.result() for sent in [pool.submit(send_without_end) for _ in range(8)]]
    assert max(took) < SERVED
    assert [answer.split(maxsplit=2)[1] for answer in answers] == [b"%d" % code] * 8
    assert all(answer.count(b"HTTP/1.1 ") == 1 for answer in answers)


@pytest.mark.row("S35")
def test_trailers_that_do_not_arrive_in_time_are_refused(serve: Serve) -> None:
    client = serve(PLAIN, header_seconds=0.3)
    for begun in (b"", b"X: half"):
        with half_sent(client.url, CHUNKED % b"/login" + begun) as connection:
            answer = everything(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        detail = json.loads(answer.split(b"\r\n\r\n", 1)[1])["detail"]
        assert detail == "The trailers did not arrive within 0.3 seconds."


@pytest.mark.row("S35")
def test_a_body_in_many_chunks_is_read_ignoring_its_trailers(serve: Serve) -> None:
    client = serve(PLAIN, header_seconds=0.5)
    text = json.dumps({"inputs": {"topic": "x" * 100_000}}).encode()
    head = f"POST /kickoff HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
    with half_sent(client.url, head.encode() + b"Transfer-Encoding: chunked\r\n\r\n") as connection:
        for start in range(0, len(text), 4):
            piece = text[start : start + 4]
            connection.sendall(b"%x\r\n" % len(piece))
            connection.sendall(piece + b"\r\n")
        connection.sendall(b"0\r\nContent-Type: text/plain\r\nIdempotency-Key: \xff\r\n\r\n")
        assert answer_on(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.row("S35")
@pytest.mark.usefixtures("many_files")
def test_400_unfinished_bodies_stay_bounded_and_others_are_served(
    command: Callable[..., Command],
) -> None:
    service = command("--token", TOKEN, "--user-token", "ann=ann-token-0123456789")
    before = resident(service.process.pid)
    head = b"POST /kickoff HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann-token-0123456789\r\n"
    unfinished = head + b"Content-Length: %d\r\n\r\n" % MIB + b"x" * (MIB - 100)
    with contextlib.ExitStack() as stack, watched(service.client(TOKEN), "/livez") as took:
        sent = [stack.enter_context(half_sent(service.url, unfinished)) for _ in range(400)]
        assert service.client(TOKEN).post("/kickoff", {"inputs": {"topic": "AI"}}).status_code == 200
        assert service.client(TOKEN).post("/kickoff", {"inputs": {"topic": "x" * (MIB // 2)}}).status_code == 200
        grown = resident(service.process.pid) - before
        refused = everything(sent[0])
    assert grown < 200 * MIB, f"{grown // MIB} MiB"
    assert max(took) < SERVED
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: " in refused


@pytest.mark.long
@pytest.mark.row("S35")
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("headers", [b"X: " + b"y" * 65_000, b"ab:c\r\n" * 10_000], ids=["one", "many"])
def test_2000_requests_with_endless_headers_are_bounded_and_delay_nobody(tmp_path: Path, headers: bytes) -> None:
    unfinished = b"GET /inputs HTTP/1.1\r\nHost: x\r\n" + headers
    with contextlib.ExitStack() as stack:
        client, process = stack.enter_context(patient_service(tmp_path, files=4096))
        before = resident(process)
        took = stack.enter_context(watched(client, "/livez"))
        sent = [stack.enter_context(half_sent(client.url, unfinished)) for _ in range(2000)]
        grown = resident(process) - before
        refused = everything(sent[0])
    assert grown < 200 * MIB, f"{grown // MIB} MiB"
    assert max(took) < SERVED
    assert refused.startswith(b"HTTP/1.1 431 " if b"\n" in headers else b"HTTP/1.1 503 ")


@pytest.mark.row("S35")
def test_a_request_may_have_two_hundred_headers(serve: Serve) -> None:
    client = serve(PLAIN)
    whole = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + b"X: y\r\n" * 198 + b"\r\n"
    with half_sent(client.url, whole) as connection:
        assert everything(connection).startswith(b"HTTP/1.1 200 ")


SCRIPT = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n"  # its answer is larger than every buffer
WITH_BODY = b"Content-Length: 62000\r\n\r\n" + b"x" * 62_000


@pytest.mark.long
@pytest.mark.row("S35")
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(
    "complete",
    [
        SCRIPT + WITH_BODY,
        SCRIPT + b"\r\n" + SCRIPT + WITH_BODY,
        SCRIPT + b"Connection: close\r\n\r\n" + SCRIPT + WITH_BODY,
    ],
    ids=["answered", "waiting", "never answered"],
)
def test_complete_requests_whose_answers_nobody_reads_keep_nobody_from_sending(tmp_path: Path, complete: bytes) -> None:
    head = f"POST /kickoff HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 27\r\n\r\n"
    with patient_service(tmp_path, files=4096) as (client, _), contextlib.ExitStack() as stack:
        slow = stack.enter_context(half_sent(client.url, SCRIPT + b"Connection: close\r\n\r\n"))
        for _ in range(1300):
            stack.enter_context(half_sent(client.url, complete))
        for _ in range(3):
            with half_sent(client.url, head.encode()) as other:
                eventually(lambda: client.get("/livez").status_code == 200, "the headers to be read")
                other.sendall(b'{"inputs": {"topic": "AI"}}')
                assert answer_on(other).startswith(b"HTTP/1.1 200 ")
        answer, _, script = everything(slow).partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(script) in answer.lower() + b"\r\n"


@pytest.mark.row("S35")
def test_a_request_is_refused_while_too_much_is_worked_on(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crew_service.http.connections.HELD_BYTES", MIB // 2)
    monkeypatch.setattr("crew_service.http.connections.LARGEST_BODIES", 0)
    client = serve(PLAIN)
    text = json.dumps({"inputs": {"topic": "x" * (MIB // 2)}})
    with contextlib.closing(sqlite3.connect(tmp_path / "service.db")) as other, ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN EXCLUSIVE")
        working = pool.submit(client.holding(client.token).session.post, f"{client.url}/kickoff", data=text)
        whole = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

        def answer() -> bytes:
            with half_sent(client.url, whole) as connection:
                return everything(connection)

        refused = eventually(lambda: (text := answer()).startswith(b"HTTP/1.1 503 ") and text, "the refusal")
        other.rollback()
        assert b"Too much is being sent" in refused
        assert working.result().status_code == 200
    assert answer().startswith(b"HTTP/1.1 200 ")


@pytest.mark.row("S35")
def test_a_body_of_maximum_size_is_read_however_large(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crew_service.http.connections.HELD_BYTES", MIB // 2)
    client = serve(PLAIN, max_body=MIB)
    client.until(client.kickoff("x" * (MIB - 100)), "completed")


def test_a_websocket_upgrade_request_is_answered_as_any_other(serve: Serve) -> None:
    client = serve(PLAIN)
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    assert client.get("/inputs", headers=headers).json()["inputs"] == ["topic"]
    denied = client.holding("another-token").get("/inputs", headers=headers)
    assert (denied.status_code, list(denied.json())) == (401, ["detail"])
