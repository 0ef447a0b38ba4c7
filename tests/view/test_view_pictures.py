"""Pictures that the tab shows, fetched by the API server: those that are pictures, and nothing else."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from fastapi.testclient import TestClient
from faults.server import FaultServer
from faults.wire import CLOSE, Reply
from viewed_run import Run, about

from airflow_crew_provider.models import Json
from airflow_crew_provider.view.execution import LARGEST_PICTURE, MOST_PICTURES, of_details
from scripts.stack.waiting import wait_until

pytestmark = [pytest.mark.since_airflow("3.1"), pytest.mark.row("S83")]
PNG = b"\x89PNG\r\n\x1a\n" + b"p" * 90
CONTENT = {"image/png": PNG, "image/jpeg": b"\xff\xd8\xff" + b"j" * 90, "image/webp": b"RIFF\0\0\0\0WEBP" + b"w" * 90}
HTML, SVG = b"<html><script>alert(1)</script>", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"


def file_of(name: str, content: bytes, kind: str = "image/png", **more: Any) -> Json:
    kept = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "content_type": kind}
    listed = {"name": name, "version": 1, "task_id": "draw", "direction": "out", "round": None, "state": "final"}
    return {**listed, **kept, "view": f"/file?id=k-1&name={name}", **more}


@pytest.fixture
def details(server: FaultServer, connect: Any, dag_run: Run) -> Any:
    """Returns what sets the execution's files."""
    connect(server.url)
    dag_run.task("kickoff", about(view="/view?id=k-1"))

    def set_files(*files: Json) -> None:
        meta = {"airflow": {"dag_id": dag_run.dag_id}}
        ids = {"execution_id": "k-1", "kickoff_ids": ["k-1"]}
        server.on("GET /executions/k-1", {"state": "completed", "meta": meta, **ids, "files": list(files)})

    return set_files


def picture(client: TestClient, dag_run: Run, file: Json, **more: Any) -> Any:
    return client.get(dag_run.page("kickoff", "-1", f"/pictures/{file['sha256']}"), **more)


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("kind", CONTENT)
def test_a_picture_is_shown_and_asked_for_once(
    client: TestClient, dag_run: Run, server: FaultServer, details: Any, kind: str, direction: str
) -> None:
    content = CONTENT[kind]
    file = file_of("charts/a b.png", content, kind, direction=direction)
    details(file)
    path = "/executions/k-1/files/charts/a%20b.png?version=1" + ("&direction=in" if direction == "in" else "")
    server.on(f"GET {path}", Reply(body=content))
    wait_until(lambda: "charts/a b.png" in client.get(dag_run.page("kickoff")).text, "the list of files")
    shown = client.get(dag_run.page("kickoff")).text
    assert f'/tasks/kickoff/-1/pictures/{file["sha256"]}"' in shown
    assert f'href="{server.url}/file?id=k-1&amp;name=charts/a b.png"' not in shown  # a blank is no part of an address
    for _ in range(2):
        answer = picture(client, dag_run, file)
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, content, kind)
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "private, no-cache"
    known = picture(client, dag_run, file, headers={"If-None-Match": answer.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")
    assert len(server.sent(f"GET {path}")) == 1


@pytest.mark.parametrize("fault", ["HTML", "SVG", "other bytes", "more bytes", "fewer bytes", "gone"])
def test_what_is_no_picture_reaches_no_browser(
    client: TestClient, dag_run: Run, server: FaultServer, details: Any, fault: str
) -> None:
    claimed = {"HTML": HTML, "SVG": SVG}.get(fault, PNG)
    sent = {
        "other bytes": Reply(body=PNG[:-1] + b"x"),
        "more bytes": Reply(body=PNG + b"x"),
        "fewer bytes": Reply(body=PNG, stop_after=20, end=CLOSE),
        "gone": Reply(status=404, body={"detail": "no such file"}),
    }.get(fault, Reply(body=claimed))
    file = file_of("a.png", claimed)
    details(file)
    server.on("GET /executions/k-1/files/a.png?version=1", sent)
    answer = picture(client, dag_run, file)
    assert (answer.status_code, b"<script>alert" in answer.content, PNG[:20] in answer.content) == (502, False, False)
    assert answer.headers["cache-control"] == "private, no-store"


def test_only_small_pictures_are_shown_and_all_files_are_linked(
    client: TestClient, dag_run: Run, server: FaultServer, details: Any
) -> None:
    large = {"size": LARGEST_PICTURE + 1, "sha256": "1" * 64}
    others = [
        file_of("a.svg", SVG, "image/svg+xml"),
        file_of("a.html", HTML, "text/plain"),
        file_of("a.gif", b"GIF89a", "image/gif"),
        {**file_of("large.png", PNG), **large},
        {**file_of("empty.png", b""), "size": 0},
    ]
    details(*others)
    wait_until(lambda: "large.png" in client.get(dag_run.page("kickoff")).text, "the list of files")
    shown = client.get(dag_run.page("kickoff")).text
    assert "<img" not in shown
    assert "1.0 MiB" in shown
    for each in others:
        assert f'href="{server.url}/file?id=k-1&amp;name={each["name"]}"' in shown
        assert picture(client, dag_run, each).status_code == 404
    assert {request.target for request in server.requests} == {"/executions/k-1"}


def test_few_pictures_are_shown_on_a_page() -> None:
    found = of_details({"files": [file_of(f"{number}.png", PNG + bytes([number])) for number in range(60)]})
    assert (len(found["files"]), sum(bool(each["picture"]) for each in found["files"])) == (50, MOST_PICTURES)


@pytest.mark.parametrize("link", ["javascript:alert(1)", "//evil.example/a", "https://evil.example/a", "/a\\b", "", 1])
def test_a_file_leads_nowhere_but_to_its_service(link: Any) -> None:
    (file,) = of_details({"files": [file_of("a.png", PNG, view=link)]}, page=lambda path: path or "")["files"]
    assert file["link"] == ""
