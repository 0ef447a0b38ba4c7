"""The blocks of the pages: Python compiles and its imports exist, JSON reads, and commands know what they are given."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import airflow
import pytest
from airflow.cli.cli_parser import get_parser
from packaging.version import Version

from airflow_crew_provider.audit import cli as audit
from crew_service import cli as service

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELLS = ("bash", "console", "sh", "shell")
COMMANDS = {"airflow": get_parser, "airflow-crew-service": service._parser, "airflow-crew-reviews": audit._parser}
COMMAND = re.compile(rf"(?:\$ )?(?:uv run |[\w-]+/bin/)?({'|'.join(COMMANDS)}|make) +(.*)")


def blocks(*languages: str) -> list[tuple[str, str]]:
    """Return an id and the text of each block in one of the languages."""
    return [
        (f"{page.name}-{number}", re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE))
        for page in PAGES
        for number, found in enumerate(BLOCK.finditer(page.read_text("utf-8")), 1)
        if found[2] in languages
    ]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Return what the pages type into a shell: the name of a command of ours or Airflow's, and its arguments."""
    for _, text in blocks(*SHELLS):
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            if found := COMMAND.match(line):
                yield found[1], shlex.split(found[2], comments=True)


NEEDS_3_3 = {"ExceptionRetryPolicy"}
NEEDS_3_1 = ("operators.review", "operators.usage_approval", "task_groups")
BEFORE_3_1 = ("2.", "3.0.")


@pytest.mark.since_airflow("3.1")  # whose classes and commands the pages show
def test_a_block_of_python_compiles_and_its_imports_exist() -> None:
    for name, block in blocks("python", "py"):
        for node in ast.parse(block, name).body:
            if isinstance(node, ast.Import | ast.ImportFrom) and _is_for_this_airflow(node):
                exec(compile(ast.Module([node], []), name, "exec"), {})


def _is_for_this_airflow(node: ast.Import | ast.ImportFrom) -> bool:
    named = getattr(node, "module", None) or ""
    if NEEDS_3_3 & {each.name for each in node.names}:
        return Version(airflow.__version__) >= Version("3.3")
    return not airflow.__version__.startswith(BEFORE_3_1) or not any(part in named for part in NEEDS_3_1)


def test_the_blocks_are_found() -> None:
    assert len(blocks("python")) >= 10
    assert blocks("json")
    assert {*COMMANDS, "make"} <= {name for name, _ in commands()}


def test_a_block_of_json_reads() -> None:
    for name, block in blocks("json"):
        try:
            _read_values(block)
        except ValueError as error:
            pytest.fail(f"{name}: {error}")


def _read_values(block: str) -> None:
    while block := block.strip():
        _, end = json.JSONDecoder().raw_decode(block)
        block = block[end:]


@pytest.mark.since_airflow("3.1")  # whose classes and commands the pages show
def test_a_command_knows_what_it_is_given() -> None:
    parsers: dict[str, argparse.ArgumentParser] = {name: make() for name, make in COMMANDS.items()}
    for name, given in commands():
        if name != "make":
            parsers[name].parse_args(given)  # exits at an argument that it does not know, which it prints


def test_make_knows_its_targets() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {target for name, given in commands() if name == "make" for target in given[:1]} <= set(targets)
