"""Each row of the fault matrix has a seeded fault that fits the code; `make faults` tries it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import reliability
from scripts.seeded_faults import SeededFault, main, problem_with, seeded_faults

FAULTS = seeded_faults()


def test_each_row_proven_by_a_quick_test_has_a_fault() -> None:
    proven = [row for row, tests in reliability.proofs().items() if not all(test.is_long for test in tests)]
    assert [fault.row for fault in FAULTS] == proven


def test_each_fault_names_a_quick_test_of_its_row() -> None:
    proofs = {
        row: {f"{test.file}::{test.function}" for test in tests if not test.is_long}
        for row, tests in reliability.proofs().items()
    }
    tests = {fault.row: fault.test.partition("[")[0] for fault in FAULTS}
    assert {row: test for row, test in tests.items() if test not in proofs[row]} == {}


def test_the_text_to_replace_is_once_in_the_code() -> None:
    for fault in FAULTS:
        fault.seeded((reliability.ROOT / fault.file).read_text("utf-8"))


TEST = """
import sys
sys.path.insert(0, ".")
from code_with_fault import answer

def test_it(): assert answer() == {expected}
def test_anything(): assert answer()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("test_code.py::test_it", None),
        ("test_code.py::test_anything", "NOT DETECTED"),
        ("test_wrong.py::test_it", "FAILS WITHOUT THE FAULT"),
        ("test_code.py::test_misspelled", "pytest ended with 4"),
    ],
)
def test_a_fault_is_detected_if_it_alone_fails_the_test(tmp_path: Path, test: str, problem: str | None) -> None:
    code = "def answer():\n    return 42\n"
    (tmp_path / "code_with_fault.py").write_text(code)
    (tmp_path / "test_code.py").write_text(TEST.format(expected=42))
    (tmp_path / "test_wrong.py").write_text(TEST.format(expected=43))
    fault = SeededFault("A1", "code_with_fault.py", "return 42", "return 41", test)
    assert problem_with(fault, tmp_path) == problem
    assert (tmp_path / "code_with_fault.py").read_text() == code


def test_a_text_that_has_changed_is_named() -> None:
    fault = SeededFault("A1", "file.py", "return 40", "return 41", "test_code.py")
    with pytest.raises(ValueError, match=r"A1: the text to replace is in file.py 0 times, not once"):
        fault.seeded("return 42")


def test_a_row_without_a_fault_is_named() -> None:
    with pytest.raises(SystemExit, match=r"has no fault for A10, Q1$"):
        main(["N1", "Q1", "A10"])
