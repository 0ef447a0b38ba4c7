"""Each Python block of the pages compiles, and what it imports exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import airflow
import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
BLOCK = re.compile(r"^( *)```(?:python|py)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(re.sub(rf"^{found[1]}", "", found[2], flags=re.MULTILINE), id=f"{page.name}-{number}")
    for page in PAGES
    for number, found in enumerate(BLOCK.finditer(page.read_text("utf-8")), 1)
]
NEEDS_3_1 = ("operators.review", "task_groups")
BEFORE_3_1 = ("2.", "3.0.")


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_python_compiles_and_its_imports_exist(block: str) -> None:
    tree = ast.parse(block)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and _is_for_this_airflow(node):
            exec(compile(ast.Module([node], []), "<docs>", "exec"), {})


def _is_for_this_airflow(node: ast.Import | ast.ImportFrom) -> bool:
    named = getattr(node, "module", None) or ""
    return not airflow.__version__.startswith(BEFORE_3_1) or not any(part in named for part in NEEDS_3_1)


def test_the_blocks_are_found() -> None:
    assert len(BLOCKS) >= 10
