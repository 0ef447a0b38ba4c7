"""The messages of the package, read from its source: what stands in errors, by the part that never changes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "airflow_crew_provider"
PLACES = (
    "exceptions.py",
    "operators",
    "sensors",
    "task_groups",
    "triggers",
    "hooks",
    "api",
    "client",
    "compat",
    "wait",
    "inbox",
    "flows",
    "kickoff",
    "review",
    "resume",
)
RAISING = {"ValueError", "TypeError", "ImportError", "AirflowException", "AirflowSensorTimeout", "fail_task", "_refuse"}
SHORTEST = 12  # a shorter piece of text says nothing by itself


def sources() -> Iterator[Path]:
    for place in PLACES:
        path = PACKAGE / place
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def messages() -> dict[str, str]:
    """Return the longest fixed clause of each message, and where it stands."""
    found: dict[str, str] = {}
    for path in sources():
        tree = ast.parse(path.read_text("utf-8"))
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for call in filter(_makes_an_error, ast.walk(tree)):
            for argument in (*call.args, *(each.value for each in call.keywords)):
                for text in _texts(argument, functions):
                    found.setdefault(text, f"{path.relative_to(PACKAGE)}:{call.lineno}")
    return found


def _makes_an_error(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
    return name in RAISING or (
        name.startswith("Crew") and name[4:5].isupper() and not name.endswith(("Hook", "Inputs"))
    )


def _texts(node: ast.expr, functions: dict[str, ast.FunctionDef]) -> Iterator[str]:
    """Yield the longest fixed clause of a text, or of what a function of the same module returns in its place."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
        returned = ast.walk(functions[name]) if name in functions else ()
        for each in returned:
            if isinstance(each, ast.Return) and isinstance(each.value, ast.Constant | ast.JoinedStr):
                yield from _texts(each.value, {})
    pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
    fixed = [each.value for each in pieces if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    clauses = [clause.strip(" .,;:()'\"") for piece in fixed for clause in re.split(r"[.;:] ", piece)]
    longest = max(clauses, key=len, default="")
    if len(longest) >= SHORTEST:
        yield longest
