"""docs/reliability.md has every fault, tests/reliability.md the tests that prove it, and neither can go stale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import reliability

# An Airflow on SQLite of its own, and copies of CrewAI with other code: minutes each.
PROVEN_BY_LONG_TESTS = {"A27", "S100", "S101", "S102"}


def test_the_page_and_the_test_list_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["reliability", "--check"])
    assert reliability.main() == 0, "run: python -m scripts.reliability"


def test_every_row_of_the_network_has_a_test() -> None:
    assert [row for row, tests in reliability.proofs().items() if row.startswith("N") and not tests] == []


def test_each_row_has_a_test_that_is_not_long() -> None:
    rows = {row for row, tests in reliability.proofs().items() if tests and all(each.is_long for each in tests)}
    assert rows == PROVEN_BY_LONG_TESTS


def test_a_tests_row_is_its_mark_and_not_its_name() -> None:
    names = [each.function for tests in reliability.proofs().values() for each in tests]
    assert [name for name in names if re.match(r"test_[anfs]\d+_", name)] == []


def test_function_and_file_markers_are_read_and_untested_rows_named(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "test_x.py"
    file.parent.mkdir()
    file.write_text(
        "import pytest\npytestmark = [pytest.mark.long, pytest.mark.row('A1')]\n"
        "@pytest.mark.row('N1', 'N2')\ndef test_n1_it() -> None: ...\n"
    )
    found = reliability.proofs(tmp_path)
    assert found["A1"] == found["N1"] == found["N2"] == [("tests/test_x.py", "test_n1_it", True)]
    page = reliability.tables(found)
    assert "[test_x.py](test_x.py): `test_n1_it` |" in page
    assert "| nothing is lost | **no test** |" in page


def test_the_page_has_every_fault_that_users_may_notice() -> None:
    page = reliability.PAGE.read_text("utf-8")
    missing = [row for row, (fault, outcome) in reliability.ROWS.items() if f"| {fault} | {outcome} |" not in page]
    assert set(missing) == set(reliability.ROWS) - reliability.NOTICED


def test_a_row_missing_from_the_matrix_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "test_x.py"
    file.parent.mkdir()
    file.write_text("import pytest\n@pytest.mark.row('N99')\ndef test_it() -> None: ...\n")
    with pytest.raises(KeyError):
        reliability.proofs(tmp_path)
