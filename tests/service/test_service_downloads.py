"""Files that the service fetches for its callers: from public addresses only, each looked up once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import pytest
from crew_client import Serve, eventually

from crew_service.engine.files import MOST_FILES
from crew_service.http import downloads
from crew_service.http.downloads import NotFetched, is_public, opened
from crew_service.http.slots import DOWNLOADS
from crew_service.settings import FileLimits
from scripts.stack.waiting import FACTOR

CONTENT = b"of the web" * 20_000
READS = {"tasks": [{"id": "read_task", "output": "{report.size}"}]}
PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1"),
    *(
        "::1",
        "fe80::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "::",
    ),
)


@pytest.fixture
def web() -> Iterator[Any]:
    """A web server with a file, redirects to it, and one to an address that is not public."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            port = self.server.server_address[1]
            targets = {"/moved": "/file", "/round": "/round", "/inside": f"http://127.0.0.2:{port}/file"}
            server.asked.append((self.path, self.headers.get("Authorization"), self.headers.get("Cookie")))
            if self.path.startswith("/slow"):
                server.go_on.wait()
            self.send_response(302 if self.path in targets else 200 if self.path == "/file" else 404)
            if self.path in targets:
                self.send_header("Location", targets[self.path])
            content = CONTENT if self.path == "/file" else b""
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *parts: Any) -> None:
            pass

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.go_on = [], threading.Event()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.go_on.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "is_public", lambda host: host == "127.0.0.1")  # no test needs the internet


def fetched(address: str) -> bytes:
    async def fetch() -> bytes:
        async with opened(address, is_public=lambda host: host == "127.0.0.1") as (_, chunks):
            return b"".join([chunk async for chunk in chunks])

    return asyncio.run(fetch())


@pytest.mark.row("S78")
@pytest.mark.parametrize("path", ["/file", "/moved"])
def test_a_file_is_fetched_and_redirects_are_followed(web: Any, path: str) -> None:
    assert fetched(f"{web.url}{path}") == CONTENT
    assert fetched(f"{web.url.replace('127.0.0.1', 'localhost')}{path}") == CONTENT


@pytest.mark.long
@pytest.mark.row("S78")
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("{url}/inside", "not public"),
        ("{url}/round", "more than 5 redirects"),
        ("{url}/none", "status 404"),
        ("http://127.0.0.1:1/", "cannot be reached"),
        ("http://[::1]:1/", "not public"),
        ("http://2130706434:1/", "not public|cannot be reached"),
        ("http://user:word@127.0.0.1/", "without a user"),
        ("http://", "no web address"),
    ],
)
def test_what_is_not_fetched(web: Any, address: str, reason: str) -> None:
    with pytest.raises(NotFetched, match=reason):
        fetched(address.format(url=web.url))
    assert [path for path, *_ in web.asked if path == "/file"] == []


@pytest.mark.row("S78")
@pytest.mark.parametrize("host", PRIVATE)
def test_an_address_of_a_network_is_not_public(host: str) -> None:
    assert not is_public(host)
    assert is_public("93.184.215.14")
    assert is_public("2606:2800:21f:cb07:6820:80da:af6b:8b2c")


@pytest.mark.row("S78")
@pytest.mark.parametrize("allowed", [True, False])
def test_a_kickoff_names_a_private_address(serve: Serve, web: Any, allowed: bool) -> None:
    client = serve(READS, allow_file_urls=allowed)
    for host in ("127.0.0.1", "localhost"):
        address = f"{web.url.replace('127.0.0.1', host)}/file"
        refused = client.post("/kickoff", {"input_files": {"report": address}})
        assert refused.status_code == (400 if allowed else 404)
        assert ("its host is not public" in refused.text) == allowed
    assert web.asked == []


@pytest.mark.row("S78")
@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("scheme", ["http", "HTTP"])
def test_a_kickoff_names_a_web_address(serve: Serve, web: Any, scheme: str) -> None:
    client = serve(READS, allow_file_urls=True)
    address = f"{scheme}{web.url.removeprefix('http')}/file"
    started = client.post("/kickoff", {"input_files": {"report": address}})
    assert started.status_code == 200, started.text
    assert client.until(started.json()["kickoff_id"], "completed")["result"]["output"] == str(len(CONTENT))
    assert [(authorization, cookie) for _, authorization, cookie in web.asked] == [(None, None)]


@pytest.mark.row("S78")
@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"input_files": {"report": "{url}/file"}, "inputs": {}}, 422),
        ({"input_files": {"topic": "{url}/file"}}, 400),
        ({"input_files": {"report": "{url}/file", **{f"a{n}": f"{{url}}/{n}" for n in range(MOST_FILES)}}}, 413),
        ({"input_files": {"report": "{url}/file"}, "continueFrom": 5}, 400),
    ],
)
def test_a_refused_kickoff_fetches_nothing(serve: Serve, web: Any, body: dict[str, Any], code: int) -> None:
    client = serve({**READS, "inputs": ["topic"]}, allow_file_urls=True)
    sent = json.loads(json.dumps({"inputs": {"topic": "tea"}, **body}).replace("{url}", web.url))
    refused = client.post("/kickoff", sent)
    assert (refused.status_code, web.asked) == (code, []), refused.text


@pytest.mark.row("S78")
@pytest.mark.usefixtures("local")
def test_files_together_too_large_are_not_all_fetched(serve: Serve, web: Any) -> None:
    client = serve(READS, allow_file_urls=True, file_limits=FileLimits(of_execution=2 * len(CONTENT)))
    files = {"report": f"{web.url}/file", **{f"a{n}": f"{web.url}/file#{n}" for n in range(9)}}
    assert client.post("/kickoff", {"input_files": files}).status_code == 413
    assert len(web.asked) == 3


@pytest.mark.row("S78")
@pytest.mark.usefixtures("local")
def test_slow_downloads_of_one_owner_delay_nobody(serve: Serve, web: Any) -> None:
    client = serve(READS, allow_file_urls=True)
    answered: list[int] = []

    def kick_off(number: int) -> None:
        own = client.holding(client.token)
        answered.append(own.post("/kickoff", {"input_files": {"report": f"{web.url}/slow/{number}"}}).status_code)

    senders = [threading.Thread(target=kick_off, args=(number,)) for number in range(45)]
    for sender in senders:
        sender.start()
    eventually(lambda: len(web.asked) >= DOWNLOADS, "the downloads")
    stopped = client.session.post(f"{client.url}/stop/{uuid4()}", timeout=10 * FACTOR)
    assert (stopped.status_code, len(web.asked)) == (404, DOWNLOADS)
    web.go_on.set()
    for sender in senders:
        sender.join()
    assert answered == [400] * 45, "all are fetched in turn"
