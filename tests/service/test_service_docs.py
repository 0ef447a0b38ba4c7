"""Swagger UI at /docs in a real browser: an endpoint is tried out with a token, and nothing comes from elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urljoin

import pytest
import requests
from crew_client import GATED, Command, Serve
from playwright.sync_api import Page, expect

from scripts.stack.waiting import PATIENCE
from tests.browsers import browser_or_skip, new_page

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-20-letters"
PREFIX = "/team"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser_or_skip() as browser:
        page = new_page(browser, viewport={"width": 1280, "height": 1000})
        yield page


@pytest.fixture
def proxy() -> Iterator[Callable[[str], str]]:
    """Serve an address below a prefix that it knows nothing of."""
    servers: list[ThreadingHTTPServer] = []

    def start(target: str) -> str:
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), forwarding(target)))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}{PREFIX}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def forwarding(target: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.forward()

        def do_POST(self) -> None:
            self.forward()

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            code, headers, content = 404, {}, b""
            if self.path.startswith(f"{PREFIX}/"):
                url = target + self.path.removeprefix(PREFIX)
                sent = {name: value for name, value in self.headers.items() if name != "Host"}
                answer = requests.request(self.command, url, data=body, headers=sent, timeout=PATIENCE)
                code, headers, content = answer.status_code, answer.headers, answer.content
            self.send_response(code)
            for name in ("Content-Type", "Content-Security-Policy", "X-Content-Type-Options"):
                if name in headers:
                    self.send_header(name, headers[name])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *parts: object) -> None:
            pass

    return Handler


def try_out(page: Page, base: str, tmp_path: Path) -> None:
    """Authorize, start an execution and read what came back; `base` is where the browser sees the API."""
    asked: list[str] = []
    troubles: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(f"{base}/docs")
    page.locator(".auth-wrapper .authorize").first.click()
    page.locator(".auth-container input").fill(TOKEN)
    page.get_by_role("button", name="Apply credentials").click()
    page.get_by_role("button", name="Close").click()
    operation = page.locator(".opblock", has_text="Start an execution")
    operation.locator(".opblock-summary-control").click()
    operation.locator("textarea").fill(json.dumps({"inputs": {"topic": "AI"}}))
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table td.response-col_status").last).to_contain_text("200")
    expect(operation.locator(".live-responses-table")).to_contain_text("kickoff_id")
    page.screenshot(path=tmp_path / "docs.png", full_page=True)
    assert f"{base}/kickoff" in asked
    elsewhere = [url for url in asked if not url.startswith((f"{base}/", "data:"))]
    assert (elsewhere, troubles) == ([], [])


def test_trying_an_endpoint_with_a_token_loads_nothing_from_elsewhere(page: Page, serve: Serve, tmp_path: Path) -> None:
    client = serve(token=TOKEN)
    try_out(page, client.url, tmp_path)
    shown = [path.replace("\u200b", "") for path in page.locator(".opblock-summary-path").all_inner_texts()]
    assert shown == list(client.get("/openapi.json").json()["paths"])
    assert len(client.get("/executions").json()["executions"]) == 1


def test_docs_work_below_a_crews_path_behind_a_prefixing_proxy(
    page: Page, command: Callable[..., Command], proxy: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "gated.json").write_text(json.dumps(GATED))
    service = command("--crew", "report=gated.json", "--token", TOKEN)
    root = service.url.removesuffix("/crews/report")
    try_out(page, f"{proxy(root)}/crews/report", tmp_path)


def test_the_policy_lets_nothing_in_from_elsewhere(serve: Serve) -> None:
    answer = requests.get(f"{serve().url}/docs", timeout=PATIENCE)
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert "http" not in answer.headers["Content-Security-Policy"]


def test_the_assets_need_no_token_and_have_their_media_types(serve: Serve) -> None:
    docs = f"{serve().url}/docs"
    kinds = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript", "start.js": "text/javascript"}
    for name, kind in kinds.items():
        answer = requests.get(urljoin(f"{docs}/", name), timeout=PATIENCE)
        assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (200, kind)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_document_describes_its_tags_and_marks_tokenless_operations(serve: Serve) -> None:
    document = serve().get("/openapi.json").json()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert {tag for operation in operations for tag in operation["tags"]} == {tag["name"] for tag in document["tags"]}
    assert all(tag["description"] for tag in document["tags"])
    for operation in operations:
        assert (operation.get("security") == []) == ("No token is needed." in operation.get("description", ""))
    assert "the addresses to notify" in document["paths"]["/kickoff"]["post"]["description"]
    assert "Shorter, and name the sources." in json.dumps(document["components"]["schemas"]["ResumeBody"])
    assert "Authorization: Bearer" in document["info"]["description"]
