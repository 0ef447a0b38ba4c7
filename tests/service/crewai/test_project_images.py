"""What `init` puts into a project builds an image that serves it: its instructions are run in a fresh environment."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew_client import Client, eventually
from crewai_projects import created
from openai_server import OpenAI

from crew_service.cli import main
from scripts.stack.waiting import PATIENCE

UV = str(Path(sys.executable).with_name("uv"))
SERVICE = Path(__file__).parents[3] / "service"
TOKEN = "a-token-for-tests-only"
PROJECTS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "json": (("crew", "json_crew"), {}),
    "classic": (("crew", "classic_crew", "--classic"), {"topic": "ducks", "current_year": "2026"}),
    "flow": (("flow", "python_flow"), {}),
}
# What only root can do to the image's user and folders.
STAND_INS = {
    "useradd": "#!/bin/sh\n",
    "install": '#!/bin/sh\nfor each; do case "$each" in --*) ;; *) mkdir -p "$each" ;; esac; done\n',
}

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run([UV, "build", "--wheel", "--out-dir", str(folder), str(SERVICE)], check=True, timeout=PATIENCE)
    return folder


class Image:
    """A folder in the place of an image's file system, and an environment in the place of the base image's Python."""

    def __init__(self, root: Path, python: str, wheels: Path) -> None:
        self.root = self.folder = root
        self.command: list[str] = []
        subprocess.run([UV, "venv", "--seed", "--python", python, str(root / "python")], check=True, timeout=PATIENCE)
        for name, text in STAND_INS.items():
            (root / "python" / "bin" / name).write_text(text)
            (root / "python" / "bin" / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{root / 'python' / 'bin'}:/usr/bin:/bin",
            "HOME": str(root),
            "UV_FIND_LINKS": str(wheels),
        }
        self.environment.pop("VIRTUAL_ENV", None)

    def build(self, project: Path) -> None:
        (self.root / "tmp").mkdir()
        for line in (project / "Dockerfile").read_text().splitlines():
            for place in ("/project", "/var/lib/crew", "/tmp/requirements"):
                line = line.replace(place, f"{self.root}{place}")
            instruction, _, rest = line.partition(" ")
            match instruction:
                case "ENV":
                    self.environment |= dict(each.split("=", 1) for each in rest.split())
                    del self.environment["UV_NO_CACHE"]  # or each of these images would download everything
                case "WORKDIR":
                    self.folder = Path(rest)
                case "COPY":
                    self.copy([each for each in rest.split() if not each.startswith("--")], project)
                case "RUN":
                    self.run(rest)
                case "CMD":
                    self.command = json.loads(rest)
                case _:
                    assert instruction in ("ARG", "FROM", "USER")

    def copy(self, paths: list[str], project: Path) -> None:
        ignored = (project / ".dockerignore").read_text().replace("**/", "").splitlines()
        *sources, target = paths
        for source in sources:
            if source == ".":
                shutil.copytree(project, self.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*ignored))
            else:
                shutil.copy(project / source, self.folder / target)

    def run(self, command: str) -> None:
        ran = subprocess.run(
            ["sh", "-ec", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    @contextlib.contextmanager
    def served(self, **environment: str) -> Iterator[Client]:
        log = self.root / "log"
        with log.open("w") as output:
            container = subprocess.Popen(
                [*self.command, "--port", "0"], cwd=self.folder, env={**self.environment, **environment}, stderr=output
            )
        try:
            eventually(lambda: "startup complete" in log.read_text() or container.poll(), "the start")
            assert container.poll() is None, log.read_text()
            yield Client(log.read_text().split(" dialect) at ", 1)[1].split(";", 1)[0], TOKEN)
        finally:
            container.terminate()
            container.wait(PATIENCE)


@pytest.mark.parametrize("python", ["3.10", "3.13"])
@pytest.mark.parametrize("kind", PROJECTS)
def test_a_project_of_each_kind_is_served_by_its_image(kind: str, python: str, wheels: Path, tmp_path: Path) -> None:
    options, inputs = PROJECTS[kind]
    project = created(tmp_path, *options)
    (project / ".env").write_text("OPENAI_API_KEY=a-key-that-no-image-has\n")
    if kind == "classic":
        subprocess.run([UV, "lock", "--python", sys.executable], cwd=project, check=True, timeout=PATIENCE)
    assert main(["init", str(project)]) == 0
    root = tmp_path / "image"
    image = Image(root, python, wheels)
    image.build(project)
    assert not (root / "project" / ".env").exists()
    model = OpenAI()
    try:
        with image.served(CREW_SERVICE_TOKEN=TOKEN, **model.environment) as client:
            kickoff_id = client.post("/kickoff", {"inputs": inputs}).json()["kickoff_id"]
            eventually(lambda: client.status(kickoff_id)["status"] != "running", "the end")
            assert client.status(kickoff_id)["status"] == "completed", client.status(kickoff_id)
    finally:
        model.close()
    assert (root / "var/lib/crew/crew-service.db").exists()
