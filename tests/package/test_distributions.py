"""What an index and a release show of the two distributions."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
import yaml

import airflow_crew_provider
import crew_service
from scripts.stack.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = airflow_crew_provider.__version__
LINK = re.compile(r"\]\(([^)]+)\)")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_pins_actions_by_hash_and_keeps_no_credentials(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text("utf-8"))
    steps = [step for job in read["jobs"].values() for step in job["steps"]]
    used = [step for step in steps if "uses" in step]
    assert used
    for step in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert read["permissions"] == {"contents": "read"}


def test_a_release_needs_a_tag_and_attests_before_uploading() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    assert release[True] == {"push": {"tags": ["v*"]}}, "YAML reads `on` as true"
    steps = [str(step.get("uses") or step["run"]) for step in release["jobs"]["distributions"]["steps"]]
    order = [
        next(place for place, step in enumerate(steps) if word in step) for word in ("-m build", "attest", "upload")
    ]
    assert order == sorted(order)


def test_both_distributions_have_one_version_which_the_changelog_describes() -> None:
    assert crew_service.__version__ == VERSION
    release = VERSION.partition(".dev")[0]
    assert re.search(rf"^## {re.escape(release)}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv = str(Path(sys.executable).with_name("uv"))
    for source in (ROOT, ROOT / "service"):
        subprocess.run([uv, "build", "--out-dir", str(folder), str(source)], check=True, timeout=PATIENCE)
    return folder


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def test_only_the_pyproject_files_contain_the_project_address() -> None:
    address = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Homepage"]
    said = subprocess.run(
        ["git", "grep", "-oE", rf"github(usercontent)?\.com/[^/ ]+/{address.rpartition('/')[2]}"],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True,
    ).stdout  # fmt: skip
    owner_and_name = "/".join(address.split("/")[-2:])
    assert {(line.partition(":")[0], line.partition(".com/")[2]) for line in said.splitlines()} == {
        ("pyproject.toml", owner_and_name),
        ("service/pyproject.toml", owner_and_name),
    }


@pytest.mark.long
@pytest.mark.parametrize("name", ["airflow_crew_provider", "airflow_crew_service"])
def test_the_long_description_reads_the_same_on_a_package_index(name: str, built: Path) -> None:
    (wheel,) = built.glob(f"{name}-*.whl")
    about = metadata(wheel)
    assert about["Author"]
    urls = dict(value.split(", ") for value in about.get_all("Project-URL", ()))
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(urls)
    text = str(about.get_payload())
    assert "mermaid" not in text
    for link in LINK.findall(text):
        assert link.startswith("https://"), link
        if link.startswith(urls["Homepage"]):  # leads to a file of the repository
            path = link.removeprefix(urls["Homepage"]).split("/", 3)[-1].partition("#")[0]
            assert (ROOT / path).exists(), link


@pytest.mark.long
def test_the_source_distribution_has_all_its_tests_and_pages_need(built: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True)
    with tarfile.open(next(built.glob("airflow_crew_provider-*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert set(listed.stdout.split()) <= packed
