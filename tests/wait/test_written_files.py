"""The files of a crew are copied whole or not at all, and named in the record."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import pytest
from airflow.providers.common.compat.sdk import AirflowException, ObjectStoragePath
from faults.server import FaultServer
from faults.wire import CLOSE, SILENCE, Reply
from simulated_airflow import Connect

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.wait import files
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from scripts.stack.waiting import wait_until

pytestmark = pytest.mark.usefixtures("simulated_airflow")
LIST = "GET /executions/k-1/files"
CHART, REPORT = b"\x89PNG" + bytes(200_000), b"All on tea."
DONE = Execution(
    kickoff_id="k-1", state=ExecutionState.COMPLETED, raw_state="completed", output="done", has_details=True
)


def listed(name: str, content: bytes, version: int = 1, **more: Any) -> dict[str, Any]:
    kept = {"name": name, "version": version, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return {**kept, "content_type": "text/plain", "task_id": "t", "direction": "out", "state": "final", **more}


@pytest.fixture(autouse=True)
def a_crew(server: FaultServer) -> None:
    found = [
        listed("charts/a b.png", CHART, 2),
        listed("charts/a b.png", b"old"),
        listed("report.md", REPORT),
        listed("draft.md", REPORT, state="draft"),
        listed("given", REPORT, direction="in"),
    ]
    server.on(LIST, {"files": found})
    server.on("GET /executions/k-1/files/charts/a%20b.png?version=2", Reply(body=CHART))
    server.on("GET /executions/k-1/files/report.md?version=1", Reply(body=REPORT))


@pytest.fixture
def memory() -> Iterator[Any]:
    found = fsspec.filesystem("memory")
    sys.modules[ObjectStoragePath.__module__].attach("memory", fs=found)  # type: ignore[attr-defined]
    found.store.clear()
    yield found
    found.store.clear()


def test_the_record_names_the_newest_final_files(server: FaultServer) -> None:
    found = files.written(CrewHook(), DONE, None)
    assert [(each["name"], each["version"], each["path"]) for each in found["files"]] == [
        ("charts/a b.png", 2, None),
        ("report.md", 1, None),
    ]
    assert set(found["files"][0]) == {"name", "version", "size", "sha256", "content_type", "task_id", "path"}
    assert "files_left_out" not in found


def test_fifty_files_are_named(server: FaultServer) -> None:
    server.on(LIST, {"files": [listed(f"{number}", REPORT) for number in range(53)]})
    found = files.written(CrewHook(), DONE, None)
    assert (len(found["files"]), found["files_left_out"]) == (50, 3)


def test_a_question_shows_newest_files_but_none_of_rejected_drafts(server: FaultServer) -> None:
    found = [
        listed("chart.png", CHART, 2, state="draft", round=2, view="/file?id=k-1&name=chart.png"),
        listed("chart.png", b"old", state="draft", round=1),
        listed("rejected.md", REPORT, state="draft", round=1),
        listed("now.md", REPORT, state="draft", round=None),
        listed("notes.md", REPORT),
        listed("given", REPORT, direction="in"),
    ]
    rounds = [{"number": 1, "decided_at": "2026-11-20T12:00:00+00:00"}, {"number": 2, "decided_at": None}]
    server.on("GET /executions/k-1", {"state": "pending", "files": found, "rounds": rounds})
    shown = files.of_question(CrewHook(), DONE)
    assert [(each["name"], each["version"]) for each in shown] == [("chart.png", 2), ("now.md", 1), ("notes.md", 1)]
    assert [each["url"] for each in shown] == [f"{server.url}/file?id=k-1&name=chart.png", "", ""]


@pytest.mark.parametrize(
    "answer",
    [{}, *({"state": "x", "files": each} for each in (1, [{"direction": "out"}])), Reply(status=500, body="x")],
)
def test_a_question_is_asked_even_with_unlistable_files(server: FaultServer, answer: Any) -> None:
    server.on("GET /executions/k-1", answer)
    assert files.of_question(CrewHook(), DONE) == []


@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_files_are_copied_into_a_folder(tmp_path: Path, scheme: str, end: str) -> None:
    folder = tmp_path / "made" / "run 1"
    for _ in range(2):  # a retry copies the same
        found = files.written(CrewHook(), DONE, f"{scheme}{folder}{end}")
    assert [each["path"] for each in found["files"]] == [
        f"{scheme}{folder}/{n}" for n in ("charts/a b.png", "report.md")
    ]
    assert {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()} == {
        "charts/a b.png": CHART,
        "report.md": REPORT,
    }


def test_files_are_copied_into_an_object_store(memory: Any) -> None:
    files.written(CrewHook(), DONE, "memory://bucket/run")
    assert {name: memory.cat(name) for name in memory.find("/")} == {
        "/bucket/run/charts/a b.png": CHART,
        "/bucket/run/report.md": REPORT,
    }


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
@pytest.mark.parametrize("names", [("q1::a.csv", "q1::b.csv"), ("why", "why?"), ("a#1", "a"), ("b%20c", "b c")])
def test_a_name_with_url_characters_is_its_own_file(
    server: FaultServer, tmp_path: Path, memory: Any, scheme: str, names: tuple[str, str]
) -> None:
    server.on(LIST, {"files": [listed(name, name.encode()) for name in names]})
    for name in names:
        server.on(f"GET /executions/k-1/files/{quote(name)}?version=1", Reply(body=name.encode()))
    folder = "memory://bucket/out" if scheme == "memory://" else f"{scheme}{tmp_path}/out"
    record = files.written(CrewHook(), DONE, folder)["files"]
    assert [each["path"] for each in record] == [f"{folder}/{name}" for name in names]
    if scheme == "memory://":
        found = {path.rpartition("/out/")[2]: memory.cat_file(path) for path in memory.find("/bucket/out")}
    else:
        found = {each.name: each.read_bytes() for each in (tmp_path / "out").iterdir()}
    assert found == {name: name.encode() for name in names}


def test_the_newer_of_same_named_files_and_folders_is_copied(server: FaultServer, tmp_path: Path) -> None:
    server.on(LIST, {"files": [listed("report.md", REPORT), listed("report.md/part", b"old"), listed("b/c", b"old")]})
    server.on("GET /executions/k-1/files/b/c?version=1", Reply(body=b"old"))
    record = files.written(CrewHook(), DONE, f"{tmp_path}/out")["files"]
    assert [each["name"] for each in record] == ["report.md", "b/c"]
    assert (tmp_path / "out" / "report.md").read_bytes() == REPORT


@pytest.mark.row("F20")
@pytest.mark.parametrize("fault", ["other bytes", "half", "gone"])
def test_a_copy_that_fails_leaves_nothing_under_its_name(server: FaultServer, tmp_path: Path, fault: str) -> None:
    reply = {
        "other bytes": Reply(body=CHART[:-1] + b"x"),
        "half": Reply(body=CHART, stop_after=100_000, end=CLOSE),
        "gone": Reply(status=404, body={"detail": "no such file"}),
    }[fault]
    server.on("GET /executions/k-1/files/charts/a%20b.png?version=2", reply)
    with pytest.raises(
        AirflowException, match=r"File 'charts/a b\.png' of execution k-1 could not be copied to .*retry"
    ):
        files.written(CrewHook(), DONE, str(tmp_path / "run"))
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


@pytest.mark.row("A73")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a process that can be killed")
def test_a_killed_copy_leaves_no_named_file_and_is_retried(server: FaultServer, tmp_path: Path) -> None:
    server.on(
        "GET /executions/k-1/files/charts/a%20b.png?version=2", Reply(body=CHART, stop_after=100_000, end=SILENCE)
    )
    folder = tmp_path / "run"
    worker = os.fork()
    if not worker:
        files.written(CrewHook(), DONE, str(folder))
        os._exit(1)  # it waits for the rest, and is killed there
    part = wait_until(lambda: [each for each in folder.rglob("*") if each.is_file() and each.stat().st_size], "a part")
    os.kill(worker, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGKILL
    assert [each.name.endswith(".part") for each in part] == [True]
    assert not (folder / "charts" / "a b.png").exists()
    server.on("GET /executions/k-1/files/charts/a%20b.png?version=2", Reply(body=CHART))
    files.written(CrewHook(), DONE, str(folder))
    assert (folder / "charts" / "a b.png").read_bytes() == CHART


@pytest.mark.row("F20")
@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a\\b", "a\nb", "", ".", "a//b"])
def test_a_name_that_leads_elsewhere_is_refused_here_too(server: FaultServer, tmp_path: Path, name: str) -> None:
    server.on(LIST, {"files": [listed(name, REPORT)]})
    with pytest.raises(CrewTaskFailed, match="which is not a relative path"):
        files.written(CrewHook(), DONE, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", [404, 405])
def test_a_deployment_without_files_fails_only_where_they_are_wanted(server: FaultServer, status: int) -> None:
    server.on(LIST, Reply(status=status, body={"detail": "Not Found"}))
    assert files.written(CrewHook(), DONE, None) == {}
    with pytest.raises(CrewTaskFailed, match="this deployment lists no files, so files_to cannot be used"):
        files.written(CrewHook(), DONE, "memory://bucket/")


def test_a_live_deployment_is_not_asked_for_unwanted_files(server: FaultServer) -> None:
    live = Execution(kickoff_id="k-1", state=ExecutionState.COMPLETED, raw_state="SUCCESS", output="done")
    assert files.written(CrewHook(), live, None) == {}
    assert server.requests == []


@pytest.mark.parametrize("body", [{"files": "no"}, {"files": [{"name": "a"}]}, {"files": [listed("a", b"", "1")]}, []])
def test_an_unreadable_file_list_fails_only_tries_that_want_files(server: FaultServer, body: Any) -> None:
    server.on(LIST, Reply(body=body))
    assert files.written(CrewHook(), DONE, None) == {}
    with pytest.raises(AirflowException, match="A retry of this task copies them") as error:
        files.written(CrewHook(), DONE, "memory://bucket/")
    assert not isinstance(error.value, CrewTaskFailed)


@pytest.mark.parametrize("folder", ["", " ", None, 1])
def test_a_folder_that_is_none_is_refused_before_anything_starts(folder: Any) -> None:
    with pytest.raises(CrewInvalidInput, match="files_to was rendered as"):
        files.refuse_unusable("files_to", folder)


def test_a_scheme_that_is_unknown_is_refused_before_anything_starts(connect: Connect) -> None:
    with pytest.raises(files.CrewStorageUnavailable, match="files_to 'nowhere://a' cannot be opened"):
        files.refuse_unusable("files_to", "nowhere://a")
