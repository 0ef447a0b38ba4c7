"""Who may import whom: the rule of the architecture, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_crew_provider

PACKAGE = Path(airflow_crew_provider.__file__).parent
NAME = "airflow_crew_provider"
CORE = (
    "exceptions",
    "models",
    "answers",
    "statuses",
    "jsonvalues",
    "api",
    "client",
    "waiting",
    "registrations",
    "boxes",
)
HTTP = ("requests", "aiohttp", "urllib3", "yarl", "httpx", "http")
# What each room may import of the package; the files of the core are named one by one.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "exceptions": (),
    "models": (),
    "answers": ("exceptions",),
    "statuses": ("answers", "exceptions", "models"),
    "jsonvalues": ("exceptions", "models"),
    "waiting": ("exceptions", "models"),
    "api": ("answers", "exceptions", "models", "statuses"),
    "client": ("answers", "api", "exceptions"),
    "registrations": ("models",),
    "boxes": ("api", "exceptions", "models", "statuses"),
    "get_provider_info": (),
    "links": CORE,
    "hooks": (*CORE, "get_provider_info"),  # the connection form, as data
    "triggers": (*CORE, "hooks"),
    "sensors": (*CORE, "hooks", "triggers", "links"),
    "operators": (*CORE, "hooks", "triggers", "links"),
    "decorators": (*CORE, "hooks", "triggers", "links", "operators"),
    "task_groups": (*CORE, "hooks", "operators", "sensors"),
    "audit": CORE,
    "inbox": CORE,
    "service": CORE,
}
# The service and the kit for tests know FastAPI and each other, and never Airflow's wing.
WITHOUT_AIRFLOW = (*CORE, "service", "get_provider_info")


def modules(room: str) -> list[Path]:
    file = PACKAGE / f"{room}.py"
    return [file] if file.exists() else sorted((PACKAGE / room).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The full names that a file imports, anywhere in it but for type checking."""
    tree = ast.parse(path.read_text())
    here = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level + 1]) + "." if node.level else ""
            module = (base + (node.module or "")).rstrip(".")
            names |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    return names


def rooms_of(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith(f"{NAME}.")}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_that_it_may(room: str) -> None:
    for path in modules(room):
        others = rooms_of(imported(path)) - {room, "__version__"}
        assert others <= set(MAY_IMPORT[room]), f"{path.name} imports {others - set(MAY_IMPORT[room])}"


def test_every_room_of_the_package_has_its_rule() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__", "testing"} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", WITHOUT_AIRFLOW)
def test_these_know_nothing_of_airflow(room: str) -> None:
    for path in modules(room):
        assert not {name for name in imported(path) if name.split(".")[0] == "airflow"}, path


@pytest.mark.parametrize("room", [room for room in CORE if room != "client"])
def test_the_client_is_the_only_room_of_the_core_that_can_reach_the_network(room: str) -> None:
    for path in modules(room):
        assert not {name for name in imported(path) if name.split(".")[0] in (*HTTP, "socket", "ssl", "asyncio")}


def test_importing_the_core_does_not_import_airflow() -> None:
    code = f"import sys; from {NAME} import {', '.join(CORE)}; sys.exit('airflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, cwd=PACKAGE.parent).returncode == 0


def test_the_provider_info_is_data_and_imports_nothing_heavy() -> None:
    code = (
        f"import sys; from {NAME}.get_provider_info import get_provider_info; get_provider_info(); "
        "sys.exit(bool({'airflow', 'requests', 'aiohttp', 'fastapi'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, cwd=PACKAGE.parent).returncode == 0
