"""What the processes of an execution may use together, and their temporary files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, eventually
from engine_stub import CREWS, alive

from crew_service import cli, options
from crew_service.crewai import process_limits, process_tree
from crew_service.crewai.process_limits import ProcessLimits, ProcessWatch
from crew_service.engine.crew import BadTarget

Start = Callable[..., Client]
TOKEN = "a-token-for-tests-only"
MIB = 1024 * 1024
LIMITS = ("--max-memory", "600MiB", "--max-processes", "20")


@pytest.fixture
def start(command: Callable[..., Command], tmp_path: Path) -> Start:
    """Start a service of `crews/greedy.py`."""

    def begin(*words: str, **environment: str) -> Client:
        given = {"CREW_SERVICE_TOKEN": TOKEN, "NOTES": str(tmp_path), **environment}
        service = command("--crew", f"{CREWS / 'greedy.py'}:crew", *words, environment=given)
        return service.client(TOKEN)

    return begin


def kickoff(client: Client, what: str) -> str:
    answer = client.post("/kickoff", {"inputs": {"what": what}})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["kickoff_id"])


def notes(folder: Path, fewest: int = 1) -> list[dict[str, Any]]:
    """Return what the crew has noted, once there is that much of it."""

    def found() -> list[dict[str, Any]]:
        text = (folder / "notes").read_text() if (folder / "notes").exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        return lines if len(lines) >= fewest else []

    return list(eventually(found, f"{fewest} notes"))


OVER = [
    ("memory", r"MemoryLimitExceeded: the crew used \d{3,4} MiB of memory; --max-memory is 600 MiB"),
    ("memory_of_a_hidden_grandchild", r"MemoryLimitExceeded: the crew used \d{3,4} MiB of memory; "),
    ("processes", r"ProcessLimitExceeded: the crew had (2[1-9]|[34]\d) processes; --max-processes is 20"),
    ("processes_that_multiply", r"ProcessLimitExceeded: the crew had \d{2,3} processes; --max-processes is 20"),
]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.row("S96")
@pytest.mark.parametrize(("deed", "error"), OVER)
def test_crews_exceeding_a_limit_fail_alone_and_their_processes_end(
    start: Start, tmp_path: Path, deed: str, error: str
) -> None:
    client = start(*LIMITS)
    peer = kickoff(client, "wait")
    (before,) = notes(tmp_path)
    over = kickoff(client, deed)
    ended = client.until(over, "error")
    assert re.match(error, ended["error"]), ended
    (mine,) = (each for each in notes(tmp_path, 2) if each["pid"] != before["pid"])
    eventually(lambda: not alive(mine["pid"]), "the end of the crew's process")
    eventually(lambda: not left_of(tmp_path), "the end of all that it started")
    (tmp_path / "go").touch()
    assert client.until(peer, "completed")["result"]["output"].startswith("waited")
    assert client.get("/healthz").status_code == 200
    again = kickoff(client, "files")
    assert client.until(again, "completed")
    assert client.status(over)["status"] == "error"
    assert len(notes(tmp_path, 4)) == 4, "the one over its limit was not started again"


def left_of(folder: Path) -> list[int]:
    """Return the processes that crews of a test have started."""

    def is_left(pid: int) -> bool:
        try:
            return f"NOTES={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    return [pid for pid in process_tree.processes() if is_left(pid)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.row("S96")
def test_a_crew_just_below_its_limits_completes(start: Start) -> None:
    client = start("--max-memory", "600MiB", CREW_SERVICE_MAX_PROCESSES="9")
    done = client.until(kickoff(client, "just_below"), "completed")
    assert done["result"]["output"].startswith("held 209715200")


@pytest.mark.slow
@pytest.mark.row("S96")
def test_limits_from_the_environment_count(start: Start) -> None:
    client = start(CREW_SERVICE_MAX_PROCESSES="8")
    assert "--max-processes is 8" in client.until(kickoff(client, "just_below"), "error")["error"]


# --- temporary files ---


ENDS = {
    "files": "completed",
    "files_and_failure": "error",
    "files_and_a_kill": "completed",
    "files_and_memory": "error",
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.row("S97")
@pytest.mark.parametrize("deed", ENDS)
def test_each_process_has_its_own_temporary_files_until_its_end(start: Start, tmp_path: Path, deed: str) -> None:
    (tmp_path / "kill").touch()
    client = start("--max-memory", "600MiB")
    peer = kickoff(client, "files_and_a_wait")
    notes(tmp_path, 2)
    client.until(kickoff(client, deed), ENDS[deed])
    of_peer, *own = (each for each in notes(tmp_path, 4) if "names" in each)
    assert len({each["folder"] for each in own}) == (2 if deed == "files_and_a_kill" else 1)
    for each in own:
        assert each["folder"] != of_peer["folder"]
        assert all(Path(name).parent == Path(each["folder"]) for name in each["names"])
        assert each["cwd"] == str(tmp_path), "the folder in which the service was started"
        eventually(lambda folder=each["folder"]: not Path(folder).exists(), "the end of the folder")
    assert all(Path(name).exists() for name in of_peer["names"])
    client.post(f"/stop/{peer}")
    eventually(lambda: not Path(of_peer["folder"]).exists(), "the end of the stopped execution's folder")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.row("S97")
def test_a_thread_outliving_the_answer_keeps_its_temporary_files(start: Start, tmp_path: Path) -> None:
    client = start()
    client.until(kickoff(client, "files_of_a_thread"), "completed")
    eventually((tmp_path / "late").exists, "the thread's file")
    used = Path((tmp_path / "late").read_text())
    assert str(used.parent) == notes(tmp_path, 2)[-1]["folder"]
    eventually(lambda: not used.parent.exists(), "the end of the folder")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.row("S97")
def test_a_stopped_or_killed_service_leaves_no_temporary_files(command: Callable[..., Command], tmp_path: Path) -> None:
    given = {"CREW_SERVICE_TOKEN": TOKEN, "NOTES": str(tmp_path)}
    crew = ("--crew", f"{CREWS / 'greedy.py'}:crew")
    for end in (Command.stop, Command.kill):
        (tmp_path / "notes").unlink(missing_ok=True)
        # On one database, the second service would also go on with the execution of the first.
        service = command(*crew, "--db", f"{end.__name__}.db", environment=given)
        kickoff(service.client(TOKEN), "files_and_a_wait")
        (_, left) = notes(tmp_path, 2)
        assert Path(left["folder"]).exists()
        end(service)
        eventually(lambda folder=left["folder"]: not Path(folder).exists(), "the end of the folder")


@pytest.mark.row("S97")
def test_a_large_tool_result_is_among_the_processes_temporary_files(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    pytest.importorskip("crewai.utilities.tool_result_artifacts", reason="this CrewAI stores no tool results in files")
    given = {"CREW_SERVICE_TOKEN": TOKEN, "NOTES": str(tmp_path)}
    client = command("--crew", f"{CREWS / 'greedy.py'}:small", environment=given).client(TOKEN)
    started = kickoff(client, "a_large_result")
    folder = Path(notes(tmp_path)[0]["folder"])
    eventually(lambda: list(folder.glob("*/*/result.md")), "the stored result")
    client.post(f"/stop/{started}")
    eventually(lambda: not folder.exists(), "the end of the folder")


@pytest.mark.slow
@pytest.mark.row("S97")
def test_executions_go_on_after_the_folder_of_all_was_deleted(start: Start, tmp_path: Path) -> None:
    given = tmp_path / "temporary"
    given.mkdir()
    client = start(TMPDIR=str(given))
    for _ in range(2):
        client.until(kickoff(client, "files"), "completed")
        [folder] = filter(Path.is_dir, given.iterdir())  # the files are CrewAI's locks
        eventually(lambda folder=folder: not list(folder.iterdir()), "the end of the folders")
        shutil.rmtree(folder)


# --- without a service ---


@pytest.mark.row("S96")
def test_a_limit_is_exceeded_by_more_than_it() -> None:
    here = [os.getpid()]
    used = process_tree.memory_of(here[0])
    assert ProcessLimits(used * 2, 1).exceeded(here) is None
    assert "--max-memory" in str(ProcessLimits(used // 2).exceeded(here))
    assert "had 2 processes" in str(ProcessLimits(max_processes=1).exceeded([*here, 1]))
    assert not ProcessLimits()


@pytest.mark.row("S96")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not read a process's parts")
def test_a_process_that_does_not_show_its_parts_counts_whole() -> None:
    here = os.getpid()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        os._exit(0 if not _can_read(here) and process_tree.memory_of(here) > MIB else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process_tree.memory_of(child) == 0


def _can_read(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return False


@pytest.mark.row("S96")
def test_a_process_with_a_reused_id_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ProcessWatch()
    watch.limits = ProcessLimits(max_processes=1)
    ended: list[str] = []
    watched = process_limits.Watched(ended.append)
    child = subprocess.Popen(["sleep", "600"])
    try:
        watch._measure({os.getpid(): watched})
        assert ended
        assert watched.started
        ended.clear()
        watched.started -= 1
        watch._measure({os.getpid(): watched})
        assert not ended
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("words", [["--max-memory", "0"], ["--max-memory", "2GB"], ["--max-processes", "0"]])
def test_a_limit_must_be_a_size_or_a_number(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["check", *words])
    assert f"argument {words[0]}: must be" in capsys.readouterr().err


def test_limits_that_cannot_be_measured_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "SUPPORTED", False)
    with pytest.raises(BadTarget, match="need Linux"):
        options.crews_of(cli._parser().parse_args(["serve", "--max-processes", "3"]))
