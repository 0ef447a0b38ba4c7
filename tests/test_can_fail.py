"""Assertions that cannot fail: a comparison that stands where the message belongs (``assert a, b == c``).

And modules that cannot be collected: two of one name, which the quick tests do not see, since they leave folders out.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("airflow_crew_provider", "benchmarks", "example_dags", "scripts", "service", "tests")
# Not the environments of other providers, which `make bench` makes in a hidden folder.
PATHS = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
FILES = [path for path in PATHS if "/." not in path.relative_to(ROOT).as_posix()]
# What a message is never made of: it is a text, or a value to show.
JUDGES = (ast.Compare, ast.BoolOp, ast.UnaryOp)


def comparisons_as_messages(code: str) -> list[str]:
    asserts = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Assert))
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in asserts if _is_judgement(node.msg)]


def _is_judgement(message: ast.expr | None) -> bool:
    parts = message.elts if isinstance(message, ast.Tuple) else [message]
    return any(isinstance(part, JUDGES) for part in parts)


def test_no_comparison_is_only_the_message_of_an_assertion() -> None:
    found = {path.relative_to(ROOT).as_posix(): comparisons_as_messages(path.read_text()) for path in FILES}
    assert len(found) > 100
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("code", ["assert a, b == c", "assert a, (b, c == d)", "assert a, not b", "assert a, b and c"])
def test_such_an_assertion_is_found(code: str) -> None:
    assert len(comparisons_as_messages(code)) == 1


@pytest.mark.parametrize("code", ["assert a == b", "assert a, 'why'", "assert (a, b) == (c, d), c", "assert a, f'{b}'"])
def test_others_are_left_alone(code: str) -> None:
    assert comparisons_as_messages(code) == []


def test_each_module_of_tests_has_a_name_of_its_own() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []
