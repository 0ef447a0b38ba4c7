"""A crew's and a Flow's files, on real processes: the same bytes in each of them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, eventually
from engine_stub import CREWS, EngineStub

from crew_service.crewai.execution_files import MISSING
from scripts.stack.waiting import PATIENCE

pytest.importorskip("crewai_files")  # a development dependency, which some of the tested environments lack

Start = Callable[..., Command]
TOKEN = "a-token-for-tests-only"
PDF, PNG, TEXT = b"%PDF-1.4\n" + b"\xff" * 2_000_000, b"\x89PNG\r\n\x1a\nabc", b"plain"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield folder
    eventually(lambda: not list(folder.glob("airflow-crew-service-*/*")), "the end of the folders")


@pytest.fixture
def restarting(command: Start, temporary: Path) -> Callable[[str], Callable[[], Client]]:
    """Returns what starts a service, killing the one before it."""

    def of(target: str) -> Callable[[], Client]:
        running: list[Command] = []

        def begin() -> Client:
            for each in running:
                each.kill()
            given = {"CREW_SERVICE_TOKEN": TOKEN, "TMPDIR": str(temporary)}
            running[:] = [command("--crew", f"{CREWS / 'reading.py'}:{target}", environment=given)]
            return running[0].client(TOKEN)

        return begin

    return of


def address(client: Client, content: bytes) -> str:
    answer = client.session.post(f"{client.url}/files", files={"file": ("a", content)}, timeout=PATIENCE)
    assert answer.ok, answer.text
    return str(answer.json()["url"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.row("S76")
def test_a_crew_keeps_its_files_after_review_and_kill(restarting: Any) -> None:
    begin = restarting("crew")
    client = begin()
    assert client.get("/inputs").json()["files"] == []
    given = {"../report": address(client, PDF), "chart": address(client, PNG)}
    started = client.post("/kickoff", {"input_files": given}).json()["kickoff_id"]
    read = f"../report={sha(PDF)} chart={sha(PNG)}"
    assert client.until(started, "pending")["task_output"] == read
    client = begin()
    answer = {"execution_id": started, "task_id": "draft", "human_feedback": "", "is_approve": True}
    assert client.post("/resume", answer).status_code == 200
    assert client.until(started, "completed")["result"]["output"] == read


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.row("S76")
def test_a_flow_has_its_files_in_its_state(restarting: Any) -> None:
    begin = restarting("ReadingFlow")
    client = begin()
    assert client.get("/inputs").json()["files"] == ["either", "report"]
    assert client.post("/kickoff", {"input_files": {"topic": address(client, PDF)}}).status_code == 400
    for other in ("/etc/hostname", f"{client.url}/files/{'a' * 43}", {"source": "sha256:" + sha(PDF)}):
        refused = client.post("/kickoff", {"inputs": {"more": [{"source": address(client, PDF)}, other]}})
        assert (refused.status_code, "'more.1' has a file type" in refused.text) == (400, True)
    inputs = {"either": address(client, TEXT), "more": [{"source": address(client, PNG)}]}
    body = {"inputs": inputs, "inputFiles": {"report": address(client, PDF)}}
    started = client.post("/kickoff", body).json()["kickoff_id"]
    read = f"PDFFile={sha(PDF)} File={sha(TEXT)} File={sha(PNG)}"
    assert client.until(started, "pending")["task_output"] == read
    assert json.dumps(client.get(f"/executions/{started}").json()["inputs"]).count("sha256:") == 3
    client = begin()
    answer = {"execution_id": started, "task_id": "first", "human_feedback": "yes"}
    assert client.post("/resume", answer).status_code == 200
    assert client.until(started, "completed")["result"]["output"] == read


@pytest.mark.long
@pytest.mark.slow
def test_without_the_files_extra_a_kickoff_with_files_is_refused(command: Start, tmp_path: Path) -> None:
    hidden = "import importlib.abc, sys\n\n\nclass Hidden(importlib.abc.MetaPathFinder):\n"
    hidden += "    def find_spec(self, name, *_):\n        if name.partition('.')[0] == 'crewai_files':\n"
    hidden += "            raise ModuleNotFoundError(name)\n\n\nsys.meta_path.insert(0, Hidden())\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    given = {"CREW_SERVICE_TOKEN": TOKEN, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(CREWS)])}
    client = command("--crew", f"{CREWS / 'samples.py'}:last_gate", environment=given, fresh=True).client(TOKEN)
    assert "files" not in client.get("/inputs").json()
    body = {"inputs": {"topic": "tea", "log": ""}, "input_files": {"a": address(client, PDF)}}
    refused = client.post("/kickoff", body)
    assert (refused.status_code, refused.json()["detail"]) == (400, MISSING)


def test_folders_of_a_killed_service_are_deleted(
    play: Callable[..., EngineStub], monkeypatch: Any, tmp_path: Path
) -> None:
    from crew_service.crewai import execution_files

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    execution_files._clean.cache_clear()
    left = execution_files.root() / "a-killed-execution"
    left.mkdir()
    execution_files._clean.cache_clear()
    run = play("crew", "reading.py")
    run.files = {"a": (PDF, "application/pdf", False)}
    assert run.segment().output == f"a={sha(PDF)}"
    assert not left.exists()
    execution_files._clean.cache_clear()
