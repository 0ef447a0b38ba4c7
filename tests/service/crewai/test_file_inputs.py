"""A caller names no file of the service's machine, and no address that it fetches, in a Flow's inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crew_client import Command
from engine_stub import CREWS, EngineStub

from crew_service.crewai import load
from crew_service.engine.crew import Completed, CrewFailed
from crew_service.engine.file_inputs import REFUSED, FileInputs
from crew_service.engine.files import id_in

pytest.importorskip("crewai_files")  # a development dependency, which some of the tested environments lack

Player = Callable[..., EngineStub]
TOKEN = "a-token-for-tests-only"
SECRET = "of this machine only"


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "secret.txt").write_text(SECRET)
    return str(tmp_path / "secret.txt")


@pytest.fixture(scope="module")
def problem() -> Callable[[dict[str, Any]], str | None]:
    return refused(load(f"{CREWS / 'of_files.py'}:FileFlow").file_inputs)


def refused(places: FileInputs) -> Callable[[dict[str, Any]], str | None]:
    """Return what names the first file in some inputs that is not an uploaded one."""

    def problem(inputs: dict[str, Any]) -> str | None:
        given = [each.name for each in places.given(inputs) if not id_in(each.address or "")]
        return REFUSED.format(name=given[0]) if given else None

    return problem


FILE = {"source": "/etc/hostname"}
GIVEN = {
    "first_file": {"first_file": FILE},
    "firstFile": {"firstFile": FILE},
    "text_or_file": {"text_or_file": FILE},
    "report": {"report": {"source": {"url": "http://169.254.169.254/"}}},
    "source": {"source": "http://169.254.169.254/"},
    "files.1": {"files": [None, FILE]},
    "by_name.a": {"by_name": {"a": FILE}},
    "document.file": {"document": {"url": "http://example.com", "file": FILE}},
    "document.parts.0.parts.0.file": {"document": {"parts": [{"parts": [{"file": {"source": "x"}}]}]}},
    "album.0": {"album": [FILE]},
    "attachments.0.file": {"attachments": [{"file": FILE}]},
    "scan.file": {"scan": {"file": {"path": "/etc/hostname"}}},
    "pair.1": {"pair": [1, {"url": "http://169.254.169.254/"}]},
    "pair.file": {"pair": {"number": 1, "file": {"url": "http://169.254.169.254/"}}},
    "written.file": {"written": json.dumps({"file": FILE})},
    "messages.0.files.a": {"messages": [{"role": "user", "content": "", "files": {"a": FILE}}]},
}


@pytest.mark.row("S70")
@pytest.mark.parametrize("name", GIVEN)
def test_a_file_anywhere_in_the_inputs_is_named(name: str, problem: Callable[[dict[str, Any]], str | None]) -> None:
    assert f"The input {name!r} has a file type" in (problem(GIVEN[name]) or "")


@pytest.mark.row("S70")
def test_values_that_become_no_file_are_taken(problem: Callable[[dict[str, Any]], str | None]) -> None:
    assert problem({
        "topic": "/etc/hostname",
        "first_file": None,
        "files": [None],
        "by_name": {},
        "document": {"url": "http://example.com", "parts": [{"url": "x"}]},
        "messages": [{"role": "user", "content": "tea"}],
        "anything": FILE,
        "unknown": FILE,
    }) is None  # fmt: skip


@pytest.mark.row("S70")
def test_a_flow_without_a_file_given_runs(play: Player) -> None:
    run = play("FileFlow", "of_files.py")
    run.inputs = {"topic": "tea", "anything": FILE}
    outcome = run.segment()
    assert isinstance(outcome, Completed)
    assert outcome.output_json == {"topic": "tea", "messages": "", "anything": FILE}


@pytest.mark.row("S70")
@pytest.mark.parametrize(("flow", "name"), [("FileFlow", "first_file"), ("NeedyFileFlow", "file")])
def test_a_job_queued_with_a_file_reads_none(play: Player, path: str, flow: str, name: str) -> None:
    run = play(flow, "of_files.py")
    run.inputs = {name: {"source": path}}
    with pytest.raises(CrewFailed, match=f"The input '{name}' has a file type"):
        run.segment()


@pytest.mark.row("S70")
@pytest.mark.parametrize(("dialect", "code"), [("spec", 400), ("live", 422)])
def test_the_service_refuses_a_file_before_anything_starts(
    command: Callable[..., Command], path: str, dialect: str, code: int
) -> None:
    options = ("--crew", f"{CREWS / 'of_files.py'}:FileFlow", "--dialect", dialect)
    client = command(*options, environment={"CREW_SERVICE_TOKEN": TOKEN}).client(TOKEN)
    for name in ("first_file", "firstFile"):
        answer = client.post("/kickoff", {"inputs": {name: {"source": path}}})
        assert (answer.status_code, name in answer.text, path in answer.text) == (code, True, False)
    assert client.get("/executions").json() == {"executions": []}
