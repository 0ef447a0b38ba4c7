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
