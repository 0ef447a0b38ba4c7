"""Each of several crews has its own variables, memory and knowledge; crews of one project share a process."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from crew_client import eventually
from engine_stub import CREWS, EngineStub, alive

from crew_service import cli, options
from crew_service.crewai import process_pool
from crew_service.engine.crew import BadTarget, Crew

pytestmark = pytest.mark.row("S51")
SETTINGS = '[tool.crewai]\ntype = "flow"\n'
FLOW = """
import json, os
from crewai.flow import Flow, start
from crewai.flow.persistence import SQLiteFlowPersistence
from crewai.memory.storage.lancedb_storage import LanceDBStorage
from crewai.rag.chromadb.config import ChromaDBConfig
from dotenv import load_dotenv

load_dotenv()

class Told(Flow):
    @start()
    def tell(self):
        settings = ChromaDBConfig(embedding_function=print).settings
        return json.dumps({
            "variables": {name: value for name, value in os.environ.items() if name.startswith("OF_")},
            "knowledge": settings.persist_directory,
            "memory": str(LanceDBStorage()._path),
            "states": SQLiteFlowPersistence().db_path,
            "folder": os.getcwd(),
            "parent": os.getppid(),
        })
"""


def project(folder: Path, **variables: str) -> Path:
    source = folder / "src" / folder.name
    source.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(SETTINGS)
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    (source / "main.py").write_text(FLOW)
    return folder


def served(*words: str, **crews: object) -> Mapping[str, Crew]:
    """Load crews as the command does."""
    given = [word for name, target in crews.items() for word in ("--crew", f"{name}={target}")]
    return options.crews_of(cli._parser().parse_args(["serve", *given, *words]))


def told(crew: Crew, tmp_path: Path) -> dict[str, Any]:
    run = EngineStub(crew, tmp_path / "log")
    run.inputs = {}
    answer: dict[str, Any] = json.loads(run.segment().output)
    return answer


def kept_in(answer: dict[str, Any]) -> set[str]:
    return {answer["knowledge"], str(Path(answer["memory"]).parent), str(Path(answer["states"]).parent)}


@pytest.fixture(autouse=True)
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that all crews would share."""
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "storage"))
    return tmp_path / "storage"


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where CrewAI makes a folder for each project."""
    monkeypatch.delenv("CREWAI_STORAGE_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return tmp_path / "share"


def test_each_crew_has_its_variables_folder_and_storage(tmp_path: Path, storage: Path) -> None:
    alpha = project(tmp_path / "alpha", OF_ALPHA="a", OF_BOTH="a")
    beta = project(tmp_path / "beta", OF_BETA="b", OF_BOTH="b")
    crews = served(alpha=alpha, beta=beta)
    of_alpha, of_beta = told(crews["alpha"], tmp_path), told(crews["beta"], tmp_path)
    assert of_alpha["variables"] == {"OF_ALPHA": "a", "OF_BOTH": "a"}
    assert of_beta["variables"] == {"OF_BETA": "b", "OF_BOTH": "b"}
    assert (of_alpha["folder"], of_beta["folder"]) == (str(alpha), str(beta))
    assert kept_in(of_alpha) == {str(storage / "alpha")}
    assert kept_in(of_beta) == {str(storage / "beta")}


def test_a_crew_alone_keeps_its_folder(tmp_path: Path, storage: Path) -> None:
    crews = served(alpha=project(tmp_path / "alpha"))
    assert kept_in(told(crews["alpha"], tmp_path)) == {str(storage)}


def test_without_a_common_folder_the_project_decides(tmp_path: Path, own_folders: Path) -> None:
    crews = served(one=project(tmp_path / "alpha"), two=project(tmp_path / "beta"))
    assert kept_in(told(crews["one"], tmp_path)) == {str(own_folders / "alpha")}
    assert kept_in(told(crews["two"], tmp_path)) == {str(own_folders / "beta")}


def test_without_a_common_folder_crews_of_one_project_are_separate(tmp_path: Path, own_folders: Path) -> None:
    alpha = project(tmp_path / "alpha")
    remembers(own_folders / "alpha", "shared")
    crews = served(one=alpha, two=f"{alpha}/src/alpha/main.py:Told")
    assert kept_in(told(crews["one"], tmp_path)) == {str(own_folders / "alpha/one")}
    assert kept_in(told(crews["two"], tmp_path)) == {str(own_folders / "alpha/two")}
    assert states_in(own_folders / "alpha/one") == states_in(own_folders / "alpha/two") == ["shared"]


def test_projects_whose_folders_have_one_name_are_separate(tmp_path: Path, own_folders: Path) -> None:
    crews = served(one=project(tmp_path / "alpha/crew"), two=project(tmp_path / "beta/crew"))
    assert kept_in(told(crews["one"], tmp_path)) == {str(own_folders / "crew/one")}
    assert kept_in(told(crews["two"], tmp_path)) == {str(own_folders / "crew/two")}


@pytest.mark.long
def test_crews_of_one_project_are_separate_if_their_tokens_are(tmp_path: Path, own_folders: Path) -> None:
    alpha = project(tmp_path / "alpha")
    crews = served("--crew-token", "two=a-token-of-20-letters", one=alpha, two=alpha, three=alpha)
    one, two, three = (told(crews[name], tmp_path) for name in ("one", "two", "three"))
    assert one["parent"] == three["parent"] != two["parent"]
    assert kept_in(two) == {str(own_folders / "alpha/two")}
    assert kept_in(one).isdisjoint(kept_in(two) | kept_in(three))


def test_a_changed_variable_is_the_next_executions(tmp_path: Path) -> None:
    alpha = project(tmp_path / "alpha", OF_ALPHA="old", OF_GONE="old")
    crew = served(alpha=alpha)["alpha"]
    (alpha / ".env").write_text("OF_ALPHA=new\n")
    assert told(crew, tmp_path)["variables"] == {"OF_ALPHA": "new"}


def test_the_environment_overrides_the_projects_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "PROCESSES", process_pool.ProcessPools())
    monkeypatch.setenv("OF_BOTH", "service")
    crew = served(alpha=project(tmp_path / "alpha", OF_BOTH="project"))["alpha"]
    assert told(crew, tmp_path)["variables"] == {"OF_BOTH": "service"}


def test_variables_that_cannot_be_read_are_named_at_the_start(tmp_path: Path) -> None:
    alpha = project(tmp_path / "alpha")
    (alpha / ".env").write_bytes(b"KEY=\xff\n")
    with pytest.raises(BadTarget, match="utf-8"):
        served(alpha=alpha)


def installed_in(folder: Path) -> Path:
    """Return a folder of libraries with CrewAI, as in a project's own environment."""
    libraries = folder / "lib" / "site-packages"
    libraries.mkdir(parents=True)
    package = find_spec("crewai")
    assert package
    assert package.origin
    (libraries / "crewai").symlink_to(Path(package.origin).parent)
    (libraries / "late.py").write_text("import dotenv\ndotenv.load_dotenv()\n")
    return libraries


@pytest.mark.long
def test_the_variables_above_the_libraries_are_not_another_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process imports CrewAI itself, and the crew a library that searches for variables in the same way."""
    libraries = installed_in(project(tmp_path / "alpha", OF_ALPHA="a"))
    beta = project(tmp_path / "beta", OF_BETA="b")
    main = beta / "src/beta/main.py"
    main.write_text("import late\n" + main.read_text())
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    monkeypatch.setattr(process_pool, "subprocess", subprocess)
    assert told(served(beta=beta)["beta"], tmp_path)["variables"] == {"OF_BETA": "b"}


@pytest.mark.parametrize(
    ("target", "is_own"), [("crew.py:crew", True), ("sub/crew.py:crew", True), ("../crew.py:crew", False)]
)
def test_a_projectless_file_uses_the_variables_above_the_libraries(tmp_path: Path, target: str, is_own: bool) -> None:
    here = tmp_path / "alpha"
    libraries = installed_in(here)
    (here / ".env").touch()
    (tmp_path / "elsewhere").mkdir()
    look = f"from crew_service.crewai.world import world_of; print(world_of({target!r}).dotenv)"
    environment = {**os.environ, "PYTHONPATH": str(libraries)}
    folder = here if is_own else tmp_path / "elsewhere"
    command = [sys.executable, "-c", look]
    found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == (str(here / ".env") if is_own else "None")


@pytest.mark.long
def test_crews_of_one_project_share_a_process(tmp_path: Path, storage: Path) -> None:
    alpha = project(tmp_path / "alpha")
    crews = served(one=alpha, two=f"{alpha}/src/alpha/main.py:Told", other=project(tmp_path / "beta"))
    one, two, other = (told(crews[name], tmp_path) for name in ("one", "two", "other"))
    assert one["parent"] == two["parent"] != other["parent"]
    assert kept_in(two) == {str(storage / "two")}


@pytest.mark.long
def test_a_process_without_work_ends_beyond_the_limit(tmp_path: Path) -> None:
    before = process_pool.PROCESSES.most_idle
    try:
        crews = served("--idle-crews", "1", alpha=project(tmp_path / "alpha"), beta=project(tmp_path / "beta"))
        first = told(crews["alpha"], tmp_path)["parent"]
        assert told(crews["alpha"], tmp_path)["parent"] == first
        assert alive(first)
        told(crews["beta"], tmp_path)
        eventually(lambda: not alive(first), "the end of the process without work")
        assert told(crews["alpha"], tmp_path)["parent"] != first
    finally:
        process_pool.PROCESSES.most_idle = before


@pytest.mark.row("S16")
def test_a_process_ends_only_after_those_forked_from_it(tmp_path: Path) -> None:
    before = process_pool.PROCESSES.most_idle
    log = tmp_path / "log"
    try:
        crews = served("--idle-crews", "0", alpha=f"{CREWS / 'unruly.py'}:unruly", beta=project(tmp_path / "beta"))
        run = EngineStub(crews["alpha"], log)
        run.inputs["topic"] = "well"
        run.segment()
        eventually(lambda: run.calls(of="exit") == ["in order"], "what was registered for the exit")
        run.inputs["topic"] = "leave_all_behind"
        run.segment()
        eventually(lambda: not any(map(alive, run.calls(of="pid"))), "the end of all that the crew left behind")
    finally:
        process_pool.PROCESSES.most_idle = before


def remembers(folder: Path, *states: str) -> None:
    """Store as crews that shared this folder did."""
    (folder / "memory").mkdir(parents=True)
    (folder / "memory/memories").write_text("of both")
    with sqlite3.connect(folder / "flow_states.db") as database:
        database.execute("CREATE TABLE states (id TEXT)")
        database.executemany("INSERT INTO states VALUES (?)", [(state,) for state in states])
    database.close()


def states_in(folder: Path) -> list[str]:
    database = sqlite3.connect(folder / "flow_states.db")
    found = [row[0] for row in database.execute("SELECT id FROM states")]
    database.close()
    return found


def test_each_of_several_crews_inherits_their_shared_storage_once(
    tmp_path: Path, storage: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remembers(storage, "one", "two")
    alpha, beta = project(tmp_path / "alpha"), project(tmp_path / "beta")
    served(alpha=alpha, beta=beta)
    assert states_in(storage / "alpha") == states_in(storage / "beta") == states_in(storage) == ["one", "two"]
    assert (storage / "alpha/memory/memories").read_text() == "of both"
    assert all(f"the crew {name!r} now has a storage folder" in caplog.text for name in ("alpha", "beta"))
    assert "a copy of the memory and Flow states" in caplog.text
    caplog.clear()
    (storage / "alpha/memory/memories").unlink()
    served(alpha=alpha, beta=beta)
    assert not (storage / "alpha/memory/memories").exists()
    assert "storage folder" not in caplog.text


def test_a_crew_with_its_own_token_begins_without_others_memory(
    tmp_path: Path, storage: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remembers(storage, "one")
    given = ("--crew-token", "beta=a-token-of-20-letters")
    served(*given, alpha=project(tmp_path / "alpha"), beta=project(tmp_path / "beta"))
    assert (storage / "alpha/memory/memories").exists()
    assert not (storage / "beta/memory/memories").exists()
    assert states_in(storage / "beta") == ["one"]
    assert f"its memory is empty, because {storage / 'memory'} may hold what other crews remember" in caplog.text


def test_a_non_empty_storage_folder_is_left_unchanged(tmp_path: Path, storage: Path) -> None:
    remembers(storage, "shared")
    remembers(storage / "alpha", "own")
    served(alpha=project(tmp_path / "alpha"), beta=project(tmp_path / "beta"))
    assert states_in(storage / "alpha") == ["own"]


def test_a_crew_that_is_left_alone_keeps_its_own_folder(tmp_path: Path, storage: Path) -> None:
    alpha = project(tmp_path / "alpha")
    served(alpha=alpha, beta=project(tmp_path / "beta"))
    assert kept_in(told(served(alpha=alpha)["alpha"], tmp_path)) == {str(storage / "alpha")}


def test_one_crews_memory_is_not_in_anothers_prompts(tmp_path: Path) -> None:
    target = f"{CREWS / 'samples.py'}:remembering"
    crews = served("--crew-token", "beta=a-token-of-20-letters", alpha=target, beta=target)
    prompts = {}
    for name in ("alpha", "beta", "alpha"):
        run = EngineStub(crews[name], tmp_path / name)
        run.segment()
        prompts[name] = str([each["turns"] for each in run.entries() if each["call"] == "final"])
    assert "Confidential, of" not in prompts["beta"]
    assert "Confidential, of" in prompts["alpha"], "a crew recalls what is its own"
