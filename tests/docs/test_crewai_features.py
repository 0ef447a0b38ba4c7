"""The table of CrewAI's documentation names tests that exist, or reasons."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parents[1] / "service" / "crewai"
TABLE = (HERE / "features.md").read_text()
TEST = re.compile(r"`(test_\w+)::(\w+)`")


def rows() -> list[list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line[:1] == "|"]
    return [row for row in cells if row[0] not in ("page", "---")]


def test_each_named_test_exists() -> None:
    named = {(module, f"test_{name}") for module, name in TEST.findall(TABLE)}
    trees = {module: ast.parse((HERE / f"{module}.py").read_text()) for module, _ in named}
    known = {(module, each.name) for module, tree in trees.items() for each in tree.body if hasattr(each, "name")}
    assert named - known == set()


def test_each_row_names_a_test_or_a_reason() -> None:
    assert len(rows()) > 50
    assert [row[0] for row in rows() if len(row) != 4 or not all(row)] == []
