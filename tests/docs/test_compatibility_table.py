"""The table of what was run on each Airflow, as `make test-matrix` writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.matrix import table

RESULTS = {"tests": "7 passed", "dag": "success", "service": "changes nothing"}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = tmp_path / "compatibility.md"
    page.write_text(table.PAGE.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(table, "PAGE", page)
    return page


def test_the_page_holds_the_table_as_it_is_written(page: Path) -> None:
    before = page.read_text("utf-8")
    table.main()
    assert page.read_text("utf-8") == before
    assert all(f"\n| {cell} |" in before for cell in table.CELLS)


def test_a_result_changes_its_own_row_only(page: Path) -> None:
    before = page.read_text("utf-8").splitlines()
    cell = table.CELLS[-2]
    table.record(cell, RESULTS)
    changed = [line for line in page.read_text("utf-8").splitlines() if line not in before]
    assert changed == [f"| {cell} | 7 passed | success | changes nothing |"]


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
    table.record(table.CELLS[0], {"tests": reason, "dag": "not run", "service": "not tried"})
    assert table.read(page.read_text("utf-8"))[table.CELLS[0]] == [reason, "not run", "not tried"]


def test_what_an_installer_says_at_length_is_cut() -> None:
    assert len(table.why_not_installed("error: " + "too long " * 200)) <= 400


def test_the_page_names_what_is_held_back() -> None:
    words = table.PAGE.read_text("utf-8").partition(table.BEGIN)[0]
    for cell, pins in table.HELD_BACK.items():
        told = words[words.index(f"| {cell} |") :].partition("\n")[0]
        assert [pin for pin in pins if f"`{pin}`" not in told] == []
