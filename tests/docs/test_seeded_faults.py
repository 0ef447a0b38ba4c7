"""Each row of the fault matrix has a seeded fault that fits the code; `make faults` tries it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import reliability
from scripts.seeded_faults import SeededFault, seeded_faults, undetected

FAULTS = seeded_faults()


def test_each_row_that_a_quick_enough_test_proves_has_a_fault() -> None:
    proven = [row for row, tests in reliability.proofs().items() if not all(test.is_long for test in tests)]
    assert [fault.row for fault in FAULTS] == proven


def test_each_names_a_test_of_its_row_that_is_not_long() -> None:
    proofs = {
        row: {f"{test.file}::{test.function}" for test in tests if not test.is_long}
        for row, tests in reliability.proofs().items()
    }
    tests = {fault.row: fault.test.partition("[")[0] for fault in FAULTS}
    assert {row: test for row, test in tests.items() if test not in proofs[row]} == {}


def test_the_text_to_replace_is_once_in_the_code() -> None:
    times = {fault.row: (reliability.ROOT / fault.file).read_text("utf-8").count(fault.old) for fault in FAULTS}
    assert {row: count for row, count in times.items() if count != 1} == {}


TEST = """
import sys
sys.path.insert(0, ".")
from code_with_fault import answer

def test_it(): assert answer() == {expected}
def test_anything(): assert answer()
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code_with_fault.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "test_code.py").write_text(TEST.format(expected=42))
    (tmp_path / "test_wrong.py").write_text(TEST.format(expected=43))
    monkeypatch.setattr("scripts.seeded_faults.ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("test_code.py::test_it", None),
        ("test_code.py::test_anything", "NOT DETECTED"),
        ("test_wrong.py::test_it", "FAILS WITHOUT THE FAULT"),
        ("test_code.py::test_misspelled", "pytest ended with 4"),
    ],
)
def test_a_fault_counts_as_detected_if_only_it_makes_the_test_fail(tree: Path, test: str, problem: str | None) -> None:
    code = (tree / "code_with_fault.py").read_text()
    copy = tree / "copy"
    copy.mkdir()
    for file in tree.glob("*.py"):
        (copy / file.name).write_text(file.read_text())
    fault = SeededFault("A1", "code_with_fault.py", "return 42", "return 41", test)
    assert undetected(fault, copy) == problem
    assert (copy / "code_with_fault.py").read_text() == code


def test_a_text_that_has_changed_is_named(tree: Path) -> None:
    fault = SeededFault("A1", "code_with_fault.py", "return 40", "return 41", "test_code.py")
    with pytest.raises(ValueError, match=r"A1: the text to replace is in code_with_fault.py 0 times, not once"):
        fault.seed(tree)
