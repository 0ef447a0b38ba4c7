"""Files that crews write: stored with the work that made them, shown to reviewers, and there in later processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from crew_client import Client, Command, Receiver, eventually
from engine_stub import CREWS

from crew_service.crewai import execution_files
from crew_service.engine.crew import Job
from scripts.stack.waiting import PATIENCE

Start = Callable[..., Command]
TOKEN = "a-token-for-tests-only"
PNG = b"\x89PNG\r\n\x1a\n"
pytestmark = pytest.mark.slow


@pytest.fixture
def serve(command: Start, tmp_path: Path) -> Callable[..., Client]:
    """Returns what starts a service of `crews/writing.py` in a folder of its own, killing the one before it."""
    running: list[Command] = []

    def begin(target: str = "crew", *options: str) -> Client:
        for each in running:
            each.kill()
        (tmp_path / "out").mkdir(exist_ok=True)
        given = {"CREW_SERVICE_TOKEN": TOKEN, "MARKERS": str(tmp_path), "CREWAI_STORAGE_DIR": str(tmp_path / "kept")}
        crew = f"{CREWS / 'writing.py'}:{target}"
        running[:] = [command("--crew", crew, *(options or ("--max-file-size", "200")), environment=given)]
        return running[0].client(TOKEN)

    return begin


def listed(client: Client, started: str) -> dict[tuple[str, int], tuple[str, int | None]]:
    """Return the state and the round of each file that the crew has written."""
    found = client.get(f"/executions/{started}/files").json()["files"]
    assert client.get(f"/executions/{started}").json()["files"] == found
    return {(each["name"], each["version"]): (each["state"], each["round"]) for each in found}


def content(client: Client, started: str, name: str, **query: Any) -> bytes:
    answer = client.session.get(f"{client.url}/executions/{started}/files/{name}", params=query, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    assert answer.headers["content-disposition"].startswith("attachment; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer.content


def answer(client: Client, started: str, *, approve: bool, feedback: str = "", **more: str) -> None:
    body = {"execution_id": started, "task_id": "draft", "human_feedback": feedback, "is_approve": approve}
    said = client.post("/resume", {**body, **more})
    assert said.status_code == 200, said.text


CHART, LONG = "charts/chart.png", "a" * 255


@pytest.mark.long
@pytest.mark.row("S82", "S83")
@pytest.mark.parametrize("place", ["after the tool", "while a person decides"])
def test_a_chart_is_there_after_a_kill_and_a_review(
    serve: Callable[..., Client], tmp_path: Path, receiver: Receiver, place: str
) -> None:
    (tmp_path / place).touch()
    client = serve()
    started = client.post("/kickoff", {}).json()["kickoff_id"]
    assert client.until(started, "pending")["task_output"] == "a red chart"
    assert listed(client, started) == {(CHART, 1): ("draft", 1), (LONG, 1): ("draft", 1)}
    if place == "while a person decides":
        client = serve()
    answer(client, started, approve=False, feedback="bluer")
    eventually(lambda: client.status(started).get("task_output") == "a blue chart", "the second draft")
    drafts = listed(client, started)
    assert drafts[CHART, 1] == ("draft", 1)
    assert drafts[CHART, 2] == ("draft", 2)
    answer(client, started, approve=True, crewWebhookUrl=f"{receiver.url}/crew")
    assert client.until(started, "completed")["result"]["output"] == "read blue"
    assert listed(client, started)[CHART, 1] == ("draft", 1)
    final = {name: state for name, state in listed(client, started).items() if state[0] == "final"}
    assert set(final) == {(CHART, 2), (LONG, 2), ("out/a.md", 1), ("out/b.md", 1)}
    assert content(client, started, CHART) == PNG + b"blue"
    assert content(client, started, CHART, version=1) == PNG + b"red"
    assert content(client, started, "out/a.md") == b"a blue chart"
    hook = eventually(lambda: receiver.bodies("/crew"), "the webhook")[0]
    assert {(each["name"], each["version"]) for each in hook["files"]} == set(final)
    log = client.get(f"/executions/{started}/logs").text
    for name in ("too large", "zeros.zip"):
        assert f"The file {name} is not stored: a file may have at most 200 bytes." in log
    assert "is not stored: its name is not valid." in log
    assert "MARKERS" not in log  # the environment, to which a link leads


@pytest.mark.long
@pytest.mark.row("S82")
def test_a_flow_finds_its_files_after_kills_and_answers(serve: Callable[..., Client], tmp_path: Path) -> None:
    (tmp_path / "in the method").touch()
    roomy = ("--max-file-size", "3MiB")
    client = serve("WritingFlow", *roomy)
    started = client.post("/kickoff", {"inputs": {}}).json()["kickoff_id"]
    assert client.until(started, "pending")["task_output"] == "first"
    client = serve("WritingFlow", *roomy)
    body = {"execution_id": started, "task_id": "show", "human_feedback": "yes"}
    assert client.post("/resume", body).status_code == 200
    assert client.until(started, "completed")["result"]["output"] == "first, then second"
    assert content(client, started, "notes.txt") == b"second"
    assert content(client, started, "notes.txt", version=1) == b"first"
    assert content(client, started, "large") == bytes(range(256)) * 10_001


@pytest.mark.long
@pytest.mark.row("S82")
def test_a_crew_that_deletes_its_folder_completes(serve: Callable[..., Client]) -> None:
    client = serve("TidyFlow")
    started = client.post("/kickoff", {"inputs": {}}).json()["kickoff_id"]
    assert client.until(started, "completed")["result"]["output"] == "tidy to the end"
    assert "CREW_FILES_DIR are not stored" in client.get(f"/executions/{started}/logs").text


@pytest.mark.row("S82")
def test_segments_of_an_execution_on_one_machine_write_apart() -> None:
    """A service that has lost the execution to another one does not know it at once."""
    job = Job(str(uuid4()), {})
    with execution_files.laid_out(job) as (folder, lost):
        (Path(lost) / "notes.txt").write_text("of the lost segment")
        with execution_files.laid_out(job) as (same, written):
            assert same == folder
            assert not list(Path(written).iterdir())
        assert (Path(lost) / "notes.txt").exists()
    assert not Path(folder).exists()
    with execution_files.laid_out(job) as (_, again):
        assert again == lost


def test_artifacts_of_tasks_are_among_the_files(serve: Callable[..., Client]) -> None:
    client = serve("artifact_crew")
    started = client.post("/kickoff", {}).json()["kickoff_id"]
    client.until(started, "completed")
    assert {name: task for (name, _), task in zip(listed(client, started), tasks_of(client, started), strict=True)} == {
        "artifacts/named.html": "named",
        "artifacts/drawing.svg": "drawing",
        "artifacts/q3-report.html": "page",
    }
    assert content(client, started, "artifacts/drawing.svg") == b"<svg/>"
    assert content(client, started, "artifacts/q3-report.html") == b"<html>told"
    assert (
        "the file artifacts/gone.pdf is not among the execution's files"
        in client.get(f"/executions/{started}/logs").text
    )


def tasks_of(client: Client, started: str) -> list[str]:
    return [each["task_id"] for each in client.get(f"/executions/{started}/files").json()["files"]]


def test_a_nested_crews_output_file_is_among_the_flows_files(serve: Callable[..., Client]) -> None:
    client = serve("NestedFlow")
    started = client.post("/kickoff", {"inputs": {}}).json()["kickoff_id"]
    client.until(started, "completed")
    assert content(client, started, "out/nested.md") == b"<html>told"
