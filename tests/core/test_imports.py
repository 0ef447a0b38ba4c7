"""Who may import whom: the rule of the architecture, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import airflow_crew_provider

PACKAGE = Path(airflow_crew_provider.__file__).parent
NAME = "airflow_crew_provider"
HTTP = ("requests", "aiohttp", "urllib3", "yarl", "httpx", "http")
VALUES = ("exceptions", "models")
CORE = (*VALUES, "core")
WAITING = (*CORE, "client", "compat", "hooks", "tasks", "links")
# What each room may import of the package. A longer name goes before a shorter one.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "exceptions": (),
    "models": (),
    "get_provider_info": (),
    "core": VALUES,
    "client": CORE,
    "compat": CORE,
    "links": CORE,
    "notifications": (),
    "hooks": (*CORE, "client", "compat", "get_provider_info"),
    "tasks": (*CORE, "client", "compat", "hooks"),
    "triggers": WAITING,
    "sensors": (*WAITING, "triggers"),
    "operators": (*WAITING, "triggers"),
    "decorators": (*WAITING, "triggers", "operators"),
    "task_groups": (*WAITING, "operators", "sensors"),
    "inbox": (*CORE, "compat"),
    "audit": CORE,
    "service.settings": (),
    "service.logs": (),
    "service.storage.states": (),
    "service.storage": ("service.storage.states",),
    "service.engine": (*CORE, "service.storage", "service.settings"),
    "service.scripted_crew": ("service.engine",),
    "service.crewai": ("service.engine", "core.feedback", "core.status_parser"),
    "service.targets": ("service.engine", "service.scripted_crew", "service.crewai"),
    "service.http": (*CORE, "service.engine", "service.storage.states", "service.settings"),
    "service": (*CORE, "service"),
}
# The kit for users' tests is the one place that may know all wings.
KNOWS_ALL = ("testing",)
WITHOUT_AIRFLOW = (*CORE, "client", "service", "get_provider_info")


def modules(room: str) -> list[Path]:
    path = PACKAGE / room.replace(".", "/")
    return [path.with_suffix(".py")] if path.with_suffix(".py").exists() else sorted(path.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


EVERY_MODULE = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def imports_of(tree: ast.AST, path: Path) -> Iterator[str]:
    """Yield the full names that a piece of code imports; those of type checking count too."""
    package = path.relative_to(PACKAGE.parent).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = (base + (node.module or "")).rstrip(".")
            yield from (f"{module}.{alias.name}" for alias in node.names)
            yield module


def imported(path: Path) -> set[str]:
    return set(imports_of(ast.parse(path.read_text()), path))


def room_of(module: str) -> str:
    """Return the room of a module of the package: the longest name that has a rule."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in MAY_IMPORT or name in KNOWS_ALL), parts[0])


def modules_imported(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, wherever in it it does so."""
    short = {name.removeprefix(f"{NAME}.") for name in imported(path) if name.startswith(f"{NAME}.")}
    return {name for name in short if name in EVERY_MODULE} - {"", module_name(path)}


@pytest.mark.parametrize("module", sorted(EVERY_MODULE))
def test_a_module_imports_only_the_rooms_that_it_may(module: str) -> None:
    room = room_of(module)
    if not module or room in KNOWS_ALL:
        return
    allowed = {room, *MAY_IMPORT[room]}
    for other in modules_imported(EVERY_MODULE[module]):
        of_allowed = any(other == name or other.startswith(f"{name}.") for name in allowed)
        is_parent = any(name.startswith(f"{other}.") for name in allowed)
        assert of_allowed or is_parent, f"{module} imports {other}; {room} may not know it"


def test_every_room_of_the_package_has_its_rule() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    named = {name.split(".")[0] for name in (*MAY_IMPORT, *KNOWS_ALL)}
    assert rooms - {"__init__"} == named


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: _without_parents(name, modules_imported(path)) for name, path in EVERY_MODULE.items() if name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"These import each other: {' -> '.join(error.args[1])}")


def _without_parents(module: str, others: set[str]) -> set[str]:
    """A package that is named only to reach one of its modules is no import of its own."""
    return {other for other in others if not any(each.startswith(f"{other}.") for each in (*others, module))}


@pytest.mark.parametrize("room", WITHOUT_AIRFLOW)
def test_these_know_nothing_of_airflow(room: str) -> None:
    for path in modules(room):
        assert not {name for name in imported(path) if name.split(".")[0] == "airflow"}, path


@pytest.mark.parametrize("room", CORE)
def test_the_core_cannot_reach_the_network(room: str) -> None:
    for path in modules(room):
        assert not {name for name in imported(path) if name.split(".")[0] in (*HTTP, "socket", "ssl", "asyncio")}


def test_importing_the_core_does_not_import_airflow() -> None:
    names = ", ".join(f"{NAME}.{module}" for module in EVERY_MODULE if room_of(module) in (*CORE, "client") and module)
    code = f"import sys; import {names}; sys.exit('airflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, cwd=PACKAGE.parent).returncode == 0


def test_the_provider_info_is_data_and_imports_nothing_heavy() -> None:
    code = (
        f"import sys; from {NAME}.get_provider_info import get_provider_info; get_provider_info(); "
        "sys.exit(bool({'airflow', 'requests', 'aiohttp', 'fastapi'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, cwd=PACKAGE.parent).returncode == 0
