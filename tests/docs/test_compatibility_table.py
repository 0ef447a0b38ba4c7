"""The table of what was run on each Airflow, as `make test-matrix` writes it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from scripts.matrix import table

ROOT = Path(__file__).parents[2]
RESULTS = {"tests": "7 passed", "dag": "success", "processes": "3 passed", "service": "unchanged"}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = tmp_path / "compatibility.md"
    page.write_text(table.PAGE.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(table, "PAGE", page)
    return page


def rows_of(page: str) -> list[str]:
    written = page.partition(table.BEGIN)[2].partition(table.END)[0]
    return [line for line in written.splitlines() if ", Python 3." in line]


def test_the_page_holds_the_table_as_it_is_written(page: Path) -> None:
    before = page.read_text("utf-8")
    table.main()
    assert page.read_text("utf-8") == before
    assert [line.partition(", ")[0] for line in rows_of(before)] == [
        *(f"| {release}" for minor, release in table.VERSIONS.items() for _ in table.PYTHONS[minor]),
        f"| {table.LOWEST}",
    ]


def test_a_result_changes_its_own_row_only(page: Path) -> None:
    before = page.read_text("utf-8").splitlines()
    table.record("3.3.2, Python 3.13", RESULTS)
    changed = [line for line in page.read_text("utf-8").splitlines() if line not in before]
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert changed == [f"| 3.3.2, Python 3.13 | 7 passed | success | 3 passed | unchanged | {today} |  |"]


def test_a_release_takes_the_row_of_the_one_before_it(page: Path) -> None:
    table.record("3.4.0b2, Python 3.12", RESULTS)
    before = rows_of(page.read_text("utf-8"))
    table.record("3.4.0, Python 3.12", {**RESULTS, "tests": "8 passed"})
    after = rows_of(page.read_text("utf-8"))
    assert len(after) == len(before)
    [(old, new)] = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert old.startswith("| 3.4.0b2, Python 3.12 | 7 passed |")
    assert new.startswith("| 3.4.0, Python 3.12 | 8 passed |")


def test_one_release_is_tried_by_name() -> None:
    assert table.chosen("") == table.chosen(None) == table.VERSIONS
    assert table.chosen("3.4.0") == {"3.4": "3.4.0"}
    with pytest.raises(ValueError, match=r"supported versions are 2\.11, "):
        table.chosen("3.99.0")


def test_a_prerelease_is_installed_by_its_parts_in_make_too(tmp_path: Path) -> None:
    parts = ("apache-airflow==3.4.0b2", "apache-airflow-core==3.4.0b2", "apache-airflow-task-sdk==1.4.0b2")
    assert table.pins("3.4.0b2") == parts
    assert table.pins("3.4.0") == ("apache-airflow==3.4.0",)
    command = ["make", "--dry-run", "quick", f"VENV={tmp_path}/venv"]
    said = [
        subprocess.run([*command, f"AIRFLOW={release}"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for release in ("3.4.0b2", "3.4.0")
    ]
    assert [part for part in parts if f"'{part}'" not in said[0]] == []
    assert "'apache-airflow==3.4.0'" in said[1]
    assert "apache-airflow-core" not in said[1]


def test_a_failed_install_has_a_row_with_its_reason(page: Path) -> None:
    said = """Using Python 3.11.7 environment at: .nox/airflow-3-0
error: No solution found when resolving dependencies
  cause: Because apache-airflow==3.0.6 depends on a|b<2 and you require a|b>=2, your requirements are unsatisfiable.
  cause: Failed to fetch: http://registry.internal/simple/a/
"""
    reason = table.why_not_installed(said)
    assert reason.startswith(
        "not installed: error: No solution found when resolving dependencies Because apache-airflow"
    )
    assert "internal" not in reason
    assert "nox" not in reason
    table.record("2.11.2, Python 3.11", {"tests": reason, "dag": "not run", "processes": "not run", "service": "-"})
    row = table.read(page.read_text("utf-8"))["2.11, Python 3.11"]
    assert row[:5] == ["2.11.2, Python 3.11", reason, "not run", "not run", "-"]


def test_what_an_installer_says_at_length_is_cut() -> None:
    assert len(table.why_not_installed("error: " + "too long " * 200)) <= 400


def test_the_page_names_what_is_held_back() -> None:
    rows = rows_of(table.PAGE.read_text("utf-8"))
    for version, pins in table.HELD_BACK.items():
        told = next(row for row in rows if row.startswith(f"| {table.VERSIONS.get(version, version)}, "))
        assert [pin for pin in pins if f"`{pin}`" not in told] == []


def test_ci_runs_each_airflow_of_the_table() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["airflow"]["strategy"]["matrix"]["airflow"] == [*table.VERSIONS.values()]


@pytest.mark.parametrize("folder", [ROOT, ROOT / "service"])
def test_the_page_names_the_lowest_version_of_each_dependency(folder: Path) -> None:
    lowest = table.PAGE.read_text("utf-8").partition("## Lowest versions")[2].partition("\n## ")[0]
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    named = [re.split("[,;]", dependency)[0].strip() for dependency in project["dependencies"]]
    assert [each for each in named if f"`{each}`" not in lowest] == []
