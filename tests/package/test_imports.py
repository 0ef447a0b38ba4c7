"""Who may import whom: the subpackages in their order, each importing only those before it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from scripts.stack.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
NAME, SERVICE = "airflow_crew_provider", "crew_service"
HTTP = ("requests", "aiohttp", "urllib3", "yarl", "httpx", "http")
VALUES = ("exceptions", "models", "stored_names")
# These know neither Airflow nor sockets: values, and the rules of each subpackage.
PURE = (
    *VALUES,
    "get_provider_info",
    "api",
    "client.deployment",
    "task.attempt",
    "task.record",
    "wait.narrator",
    "wait.watch",
    "wait.schema",
    "inbox.messages",
    "inbox.flow_webhooks",
    "inbox.rows",
    "questions",
    "review.people",
    "review.answer",
    "review.form",
    "view.execution",
    "view.markdown",
    "view.page",
)
WITHOUT_AIRFLOW = (*PURE, "client.client", "client.blocking", "client.asynchronous", "audit")
BELOW = (*VALUES, "api", "client", "compat", "task", "questions")  # what every subpackage may import
SUBPACKAGES = (
    *BELOW,
    "wait",
    "inbox",
    "flows",
    "kickoff",
    "review",
    "resume",
    "run",
    "hooks",
    "links",
    "triggers",
)
# What each subpackage may import of the package. A longer name goes before a shorter one.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "exceptions": (),
    "models": (),
    "stored_names": (),
    "get_provider_info": (),
    "service": (),
    "api": VALUES,
    "compat": (*VALUES, "api"),
    "client": (*VALUES, "api", "compat"),
    "task": (*VALUES, "api", "compat"),
    "task.drive": (*BELOW, "wait"),
    "task.waiting": (*BELOW, "wait", "inbox", "triggers"),
    "wait": BELOW,
    "inbox": (*BELOW, "wait"),
    "flows": (*BELOW, "wait", "inbox"),
    "kickoff": (*BELOW, "wait", "inbox"),
    "questions": (*VALUES, "api"),
    "review": (*BELOW, "wait", "questions"),
    "resume": (*BELOW, "wait", "inbox", "flows", "kickoff"),
    "run": (*BELOW, "wait", "inbox", "kickoff", "review", "resume"),
    "hooks": (*BELOW, "get_provider_info", "wait", "kickoff"),
    "links": ("stored_names",),
    "retries": ("exceptions", "compat"),
    "notifications": (),
    "triggers": (*BELOW, "hooks", "wait", "inbox"),
    "sensors": SUBPACKAGES,
    "operators": SUBPACKAGES,
    "decorators": (*SUBPACKAGES, "operators"),
    "task_groups": (*SUBPACKAGES, "operators", "sensors"),
    "audit": (*VALUES, "api"),
    "view": (*BELOW, "hooks", "questions", "review"),
}
# Only the kit for users' tests may import everything, and the service.
KNOWS_ALL = ("testing",)
SERVICE_MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "versions": (),
    "prices": ("versions",),
    "budgets": (),
    "restart": (),
    "addresses": (),
    "times": (),
    "settings": ("prices", "budgets"),
    "logs": ("times",),
    "tracing": (),
    "storage.states": (),
    "storage.json_values": (),
    "storage": ("storage.states", "storage.json_values", "budgets"),
    "engine": ("storage", "settings", "prices", "budgets", "tracing", "addresses", "times"),
    "scripted_crew": ("engine", "tracing"),
    "crewai": ("engine", "storage.json_values", "tracing", "prices", "restart", "versions"),
    "tools": ("crewai",),
    "targets": ("engine", "scripted_crew", "crewai"),
    "image": ("engine", "crewai"),
    "offline": ("engine",),
    "http": (
        *("engine", "storage.states", "storage.json_values"),
        *("settings", "budgets", "tracing", "addresses", "times", "versions"),
    ),
}
# The command, and the modules that it needs.
COMMAND = ("__main__", "check", "cli", "local", "options", "terminal")


@dataclass(frozen=True)
class Package:
    """One side of the wire.

    :param may_import: what each subpackage may import of the package; a longer name goes before a shorter one
    :param knows_all: subpackages without a rule
    """

    folder: Path
    may_import: dict[str, tuple[str, ...]]
    knows_all: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def modules(self) -> dict[str, Path]:
        return {self._name_of(path): path for path in sorted(self.folder.rglob("*.py"))}

    def _name_of(self, path: Path) -> str:
        parts = path.relative_to(self.folder).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def files(self, subpackage: str) -> list[Path]:
        return [path for name, path in self.modules.items() if name == subpackage or name.startswith(f"{subpackage}.")]

    def subpackage_of(self, module: str) -> str:
        """Return the subpackage of a module: the longest name that has a rule."""
        parts = module.split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((name for name in names if name in self.may_import or name in self.knows_all), parts[0])

    def imported(self, module: str) -> set[str]:
        """Return the modules of the package that one imports, wherever in it it does so."""
        names = imported(self.modules[module])
        short = {name.removeprefix(f"{self.name}.") for name in names if name.startswith(f"{self.name}.")}
        return {name for name in short if name in self.modules} - {"", module}


PROVIDER = Package(ROOT / NAME, MAY_IMPORT, KNOWS_ALL)
THE_SERVICE = Package(ROOT / "service" / SERVICE, SERVICE_MAY_IMPORT, COMMAND)
BOTH = (PROVIDER, THE_SERVICE)
EACH_PACKAGE = pytest.mark.parametrize("package", BOTH, ids=lambda package: package.name)


def imports_of(tree: ast.AST, path: Path) -> Iterator[str]:
    """Yield the full names that a piece of code imports; those of type checking count too."""
    package = path.relative_to(ROOT if path.is_relative_to(PROVIDER.folder) else ROOT / "service").parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = (base + (node.module or "")).rstrip(".")
            yield from (f"{module}.{alias.name}" for alias in node.names)
            yield module


@cache
def imported(path: Path) -> set[str]:
    return set(imports_of(ast.parse(path.read_text()), path))


@EACH_PACKAGE
def test_a_module_imports_only_the_subpackages_that_it_may(package: Package) -> None:
    ruled = {module for module in package.modules if module and package.subpackage_of(module) not in package.knows_all}
    assert ruled
    assert sorted(wrong for module in ruled for wrong in _forbidden_imports(package, module)) == []


def _forbidden_imports(package: Package, module: str) -> Iterator[str]:
    subpackage = package.subpackage_of(module)
    allowed = {subpackage, *package.may_import[subpackage]}
    for other in package.imported(module):
        of_allowed = any(other == name or other.startswith(f"{name}.") for name in allowed)
        is_parent = any(name.startswith(f"{other}.") for name in allowed)
        if not (of_allowed or is_parent):
            yield f"{module} imports {other}; {subpackage} may not import it"


@EACH_PACKAGE
def test_every_subpackage_has_its_rule(package: Package) -> None:
    subpackages = {
        path.stem for path in package.folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    named = {name.split(".")[0] for name in (*package.may_import, *package.knows_all)}
    assert subpackages - {"__init__"} == named


@EACH_PACKAGE
def test_both_sides_of_the_wire_import_nothing_of_each_other(package: Package) -> None:
    others = tuple(each.name for each in BOTH if each is not package)
    paths = [
        path for name, path in package.modules.items() if package.subpackage_of(name) != "testing"
    ]  # it starts the service
    assert imports_of_any(paths, others) == []


@EACH_PACKAGE
def test_no_module_imports_itself_in_a_circle(package: Package) -> None:
    graph = {name: _without_parents(name, package.imported(name)) for name in package.modules if name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"These import each other: {' -> '.join(error.args[1])}")


def _without_parents(module: str, others: set[str]) -> set[str]:
    """A package that is named only to reach one of its modules is no import of its own."""
    return {other for other in others if not any(each.startswith(f"{other}.") for each in (*others, module))}


def imports_of_any(paths: list[Path], packages: tuple[str, ...]) -> list[str]:
    """Return which of these modules import one of these packages."""
    assert paths
    return [str(path) for path in paths if any(name.split(".")[0] in packages for name in imported(path))]


def test_these_know_nothing_of_airflow() -> None:
    assert (
        imports_of_any([path for subpackage in WITHOUT_AIRFLOW for path in PROVIDER.files(subpackage)], ("airflow",))
        == []
    )
    assert imports_of_any([*THE_SERVICE.modules.values()], ("airflow",)) == []


def test_values_and_rules_cannot_reach_the_network() -> None:
    paths = [path for subpackage in PURE for path in PROVIDER.files(subpackage)]
    assert imports_of_any(paths, (*HTTP, "socket", "ssl", "asyncio")) == []


def test_importing_values_rules_and_client_does_not_import_airflow() -> None:
    names = ", ".join(
        f"{NAME}.{module}"
        for module in PROVIDER.modules
        if any(module == each or module.startswith(f"{each}.") for each in WITHOUT_AIRFLOW)
    )
    code = f"import sys; import {names}; sys.exit('airflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, cwd=ROOT).returncode == 0


def test_the_provider_info_is_data_and_imports_nothing_heavy() -> None:
    code = (
        f"import sys; from {NAME}.get_provider_info import get_provider_info; get_provider_info(); "
        "sys.exit(bool({'airflow', 'requests', 'aiohttp', 'fastapi'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, cwd=ROOT).returncode == 0


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def imported_without(package: str, *modules: str) -> subprocess.CompletedProcess[str]:
    """Import modules where one package is not installed."""
    code = "\n".join([WITHOUT.format(package=package), *(f"import {module}" for module in modules)])
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.slow
def test_all_but_the_testing_kit_works_without_the_service() -> None:
    named = re.findall(rf"^::: ({NAME}\.[a-z_.]+[a-z_])", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    modules = {name.removesuffix(".crew_with_review").removesuffix(".crew_task") for name in named}
    assert f"{NAME}.operators.review" in modules
    tried = imported_without(SERVICE, *sorted(modules - {f"{NAME}.testing"}))
    assert tried.returncode == 0, tried.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "reason"),
    [
        (
            SERVICE,
            f"{NAME}.testing starts the crew service, which is not installed; "
            "install it with: pip install 'airflow-crew-provider[service]'",
        ),
        ("uvicorn", "No module named 'uvicorn'"),
    ],
)
def test_the_testing_kit_names_what_is_missing(package: str, reason: str) -> None:
    tried = imported_without(package, f"{NAME}.testing")
    assert tried.stderr.splitlines()[-1] == f"ModuleNotFoundError: {reason}"
    assert "another exception" not in tried.stderr
