"""Functions stay short: a long one has a part that needs a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
MEDIAN_FUNCTION = 8
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def functions(path: Path) -> Iterator[Function]:
    tree = ast.parse(path.read_text("utf-8"))
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def length(function: Function) -> int:
    """The lines from `def` to the end, without the docstring."""
    described = ast.get_docstring(function) is not None
    doc = function.body[0]
    return (function.end_lineno or 0) - function.lineno + 1 - ((doc.end_lineno or 0) - doc.lineno + 1) * described


@pytest.mark.parametrize("folder", ["airflow_crew_provider", "service/crew_service"])
def test_half_of_the_functions_are_short(folder: str) -> None:
    assert median(length(function) for path in files(folder) for function in functions(path)) <= MEDIAN_FUNCTION
