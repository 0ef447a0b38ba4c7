"""Row S53: the published unit, Compose file and manifest, as they are written, run a crew of CrewAI."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import sandbox
import yaml
from sandbox import INSIDE, ROOT, Sandbox

from crew_service import image
from crew_service.options import MAX_MEMORY, size
from scripts.stack.ports import free_port
from scripts.stack.waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.row("S53"),
    pytest.mark.skipif(not sandbox.is_there() and "CI" not in os.environ, reason="needs root to make mounts"),
]
TOKEN = "a-token-of-the-organization"
CREW = """
from crewai import Agent, BaseLLM, Crew, Task
from crewai.project import CrewBase, agent, crew, task

class Model(BaseLLM):
    def call(self, messages, *args, **kwargs):
        return "Written."

@CrewBase
class Own:
    @agent
    def writer(self):
        return Agent(role="Writer", goal="g", backstory="b", llm=Model(model="none"))

    @task
    def write(self):
        return Task(description="Write.", expected_output="x", agent=self.writer(), output_file="report.md")

    @crew
    def crew(self):
        return Crew(agents=self.agents, tasks=self.tasks)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[tool.crewai]\ntype = "crew"\n[tool.airflow-crew-service]\n')
    (folder / "crew.py").write_text(CREW)
    return folder


@contextlib.contextmanager
def running(box: Sandbox, command: list[str], tmp_path: Path) -> Iterator[str]:
    """Yield the address of the service once it is ready."""
    log, port = tmp_path / "log", free_port()
    process = box.start([*command, "--port", str(port)], log)
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):  # busy
            return requests.get(f"{url}/readyz", timeout=5).ok
        return False

    try:
        wait_until(is_ready, "the service")
        yield url
    finally:
        subprocess.run([*sandbox.AS_ROOT, "kill", str(process.pid)], check=False)
        process.wait(60)


def runs_a_crew(url: str) -> None:
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {TOKEN}"
    kickoff_id = session.post(f"{url}/kickoff", json={"inputs": {}}, timeout=PATIENCE).json()["kickoff_id"]

    def ended() -> Any:
        status = session.get(f"{url}/status/{kickoff_id}", timeout=PATIENCE).json()
        return status["status"] not in ("running", "queued") and status

    status = wait_until(ended, "the execution")
    assert status.get("result", {}).get("output") == "Written.", status
    files = session.get(f"{url}/executions/{kickoff_id}/files", timeout=PATIENCE).json()["files"]
    assert [file["name"] for file in files] == ["report.md"]


def container(project: Path, user: str, environment: dict[str, str]) -> Sandbox:
    """Return what an image of `init`, as which that of the Compose file is made, gives to its user."""
    assert "--uid 50000 --gid 0" in image.DOCKERFILE
    uid, _, gid = user.partition(":")
    own = "/var/lib/crew"
    return Sandbox(project, own, own, int(uid), int(gid or 0), home="/home/crew", environment=environment)


def test_a_container_of_the_compose_file_runs_a_crew(project: Path, tmp_path: Path) -> None:
    service = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]["crew-service"]
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert set(service["environment"]) == {"CREW_SERVICE_DB", "CREW_SERVICE_TOKEN"}
    box = container(project, service["user"], {"CREW_SERVICE_TOKEN": TOKEN})
    command = [*service["entrypoint"], *service["command"], "--crew", f"{INSIDE}/project"]
    with running(box, command, tmp_path) as url:
        runs_a_crew(url)
        healthy = " ".join(service["healthcheck"]["test"][3:]).replace("http://localhost:8300", url)
        subprocess.run([sys.executable, "-c", healthy], check=True, timeout=30)


@pytest.mark.long
def test_a_pod_of_the_manifest_runs_a_crew(project: Path, tmp_path: Path) -> None:
    deployment = next(yaml.safe_load_all((ROOT / "deploy" / "crew-service.yaml").read_text()))
    pod = deployment["spec"]["template"]["spec"]
    (one,) = pod["containers"]
    assert one["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    user = f"{pod['securityContext']['runAsUser']}:0"
    (variables,) = (line for line in image.DOCKERFILE.splitlines() if line.startswith("ENV "))
    given = dict(pair.split("=", 1) for pair in shlex.split(variables.removeprefix("ENV ")))
    given |= {each["name"]: each["value"] for each in one["env"]}
    (told,) = (line for line in image.DOCKERFILE.splitlines() if line.startswith("CMD "))
    command = [word.replace("/project", f"{INSIDE}/project") for word in json.loads(told.removeprefix("CMD "))]
    box = container(project, user, {**given, "CREW_SERVICE_TOKEN": TOKEN})
    assert size(given[MAX_MEMORY]) < size(one["resources"]["limits"]["memory"].replace("Gi", "GiB"))
    with running(box, command, tmp_path) as url:
        runs_a_crew(url)
        for probe in ("readinessProbe", "livenessProbe"):
            assert requests.get(url + one[probe]["httpGet"]["path"], timeout=one[probe]["timeoutSeconds"]).ok


@pytest.mark.long
def test_a_home_that_cannot_be_written_is_named(project: Path, tmp_path: Path) -> None:
    box = Sandbox(project, "/var/lib/crew", "/var/lib/crew", is_read_only=True)
    process = box.start(
        ["airflow-crew-service", "serve", "--token", TOKEN, "--crew", f"{INSIDE}/project"], tmp_path / "log"
    )
    assert process.wait(120) == 2
    said = (tmp_path / "log").read_text().splitlines()[-1]
    assert "Read-only file system: '/.local'" in said, said
    assert said.endswith("set HOME to one that is."), said
    assert "newer is needed" not in said


def unit() -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(ROOT / "docs" / "crew-service.service")
    return dict(parser["Service"])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "crew-service.service"
    copy.write_text((ROOT / "docs" / "crew-service.service").read_text().replace(unit()["ExecStart"], "/bin/true"))
    checked = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (checked.returncode, copy.name in checked.stderr) == (0, False), checked.stderr


def test_a_crew_exhausting_memory_does_not_end_the_unit() -> None:
    """By default, systemd stops all processes of a unit if the kernel kills one of them."""
    assert unit()["OOMPolicy"] == "continue"


@pytest.mark.long
def test_the_unit_runs_a_crew(project: Path, tmp_path: Path) -> None:
    service = unit()
    assert (service["ProtectSystem"], service["ProtectHome"], service["DynamicUser"]) == ("strict", "yes", "yes")
    state = f"/var/lib/{service['StateDirectory']}"
    box = Sandbox(
        project,
        state,
        service["WorkingDirectory"],
        mode=service["StateDirectoryMode"],
        is_read_only=True,
        environment={
            **dict(pair.split("=", 1) for pair in shlex.split(service.get("Environment", ""))),
            "CREW_SERVICE_TOKEN": TOKEN,
        },
    )
    command = shlex.split(service["ExecStart"].replace("/opt/crew-service", INSIDE))
    with running(box, command, tmp_path) as url:
        runs_a_crew(url)
