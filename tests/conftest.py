"""What holds for every test: an Airflow home of its own, and no silent skip where CREW_TESTS_NO_SKIP=1 is set (CI)."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import fork_template
import pytest
from hypothesis import settings
from packaging.version import Version

from scripts.stack.waiting import FACTOR

# The tests of the service run without Airflow and the provider too.
HAS_PROVIDER = find_spec("airflow_crew_provider") is not None and find_spec("airflow") is not None
pytest_plugins = ["failures", *(["airflow_crew_provider.testing", "task_fixtures"] if HAS_PROVIDER else [])]

NO_SKIP = os.environ.get("CREW_TESTS_NO_SKIP") == "1"
AIRFLOW = Version(Version(version("apache-airflow") if HAS_PROVIDER else "0").base_version)
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
AIRFLOW_HOME = tempfile.mkdtemp(prefix="crew-tests-")

# What is collected stays until the end. The garbage collector went through it again and again, which took two fifths of
# the time of a collection, in each worker.
gc.disable()

# The limit of a whole test, which is 600 s (`pyproject.toml`), is prolonged like all others.
if FACTOR != 1:
    os.environ.setdefault("PYTEST_TIMEOUT", str(600 * FACTOR))

# An example that takes long on a busy machine is no failure.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
settings.register_profile("quick", max_examples=20, deadline=None)
# For mutation runs: the same examples each time, and fewer of them.
settings.register_profile("mutants", derandomize=True, max_examples=30, deadline=None, database=None)

# A test run is many processes, and each would compile all that it imports: CrewAI alone takes twice as long then.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Before anything imports Airflow: neither the settings nor the database of the person who runs the tests.
for variable in [name for name in os.environ if name.startswith("AIRFLOW")]:
    del os.environ[variable]
os.environ["AIRFLOW_HOME"] = AIRFLOW_HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

# The Airflow that tests of a whole subpackage need, even to import its classes.
collect_ignore = [folder for folder, release in {"inbox": "3.0", "review": "3.1"}.items() if Version(release) > AIRFLOW]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    fork_template.share()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin to collect elsewhere, and find what others have compiled by the time it comes there.

    In a fresh clone, to rewrite the assertions takes more than all else of a collection.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and (entries := report.result):
        first = len(entries) * WORKER // WORKERS
        report.result = [*entries[first:], *entries[:first]]
    return report


@pytest.fixture(scope="session")
def database() -> None:
    """Airflow's own tables, in the home that all tests share."""
    from airflow.utils.db import initdb

    initdb()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a newer Airflow, and mark as slow what starts processes; else a test says it itself.

    A test that is left out isn't skipped: nothing is missing on this machine, and `make test-matrix` runs it.

    Tests on Airflow's processes come first, a group for each of their Airflows: as many workers run one each, while
    others run the rest: first crews of CrewAI, of which one takes minutes. So xdist must not sort the groups by their
    number of tests (`--no-loadscope-reorder`).
    """
    newer = [item for item in items if any(_needs(mark) > AIRFLOW for mark in item.iter_markers("since_airflow"))]
    if newer:
        config.hook.pytest_deselected(items=newer)
        items[:] = [item for item in items if item not in newer]
    for item in items:
        code = getattr(getattr(item, "function", None), "__code__", None)
        fixtures = {"command", "render"} & set(getattr(item, "fixturenames", ()))
        starts = "subprocess" in (code.co_names if code else ()) or fixtures
        if starts or {"crewai", "system"} & set(item.path.parts):
            item.add_marker("slow")
        if config.pluginmanager.hasplugin("xdist") and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    folders = ("system", "crewai", "cluster")
    places = _places(items)
    items.sort(
        key=lambda item: (
            *(folder not in item.path.parts for folder in folders),
            "crashes" in item.path.parts,
            places[item],
        )
    )


def pytest_collection_finish() -> None:
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Exempt what a module has loaded, too: a collection may take longer than a page of a service in this process."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if NO_SKIP and _skipped(session.config) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if NO_SKIP and (skipped := _skipped(config)):
        terminalreporter.section("skipped, which is a failure here (CREW_TESTS_NO_SKIP=1)")
        for report in skipped:
            terminalreporter.line(f"{report.nodeid}: {report.longrepr}")


def pytest_unconfigure() -> None:
    shutil.rmtree(AIRFLOW_HOME, ignore_errors=True)


def _places(items: list[pytest.Item]) -> dict[pytest.Item, tuple[float, str]]:
    """Spread the tests that wait among those that keep a core busy, so that each moment has some of both.

    The places are the same in each worker, wherever it began to collect.
    """
    waiting = {item for item in items if item.get_closest_marker("waits") or item.get_closest_marker("slow")}
    in_order = sorted(items, key=lambda item: item.path)
    kinds = [item for item in in_order if item in waiting], [item for item in in_order if item not in waiting]
    return {item: (number / len(kind), item.nodeid) for kind in kinds for number, item in enumerate(kind)}


def _group(item: pytest.Item) -> str | None:
    """Name the tests that one worker runs, since each worker would start anew what they share.

    These are the tests with a fixture of their module, those on Airflow's own tables, and those with crews in processes
    of one pool.
    """
    if {"system", "cluster"} & set(item.path.parts):
        return None  # they have groups of their own
    fixtures: dict[str, Any] = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
    if "play" in fixtures:
        return "crews"
    if "database" in fixtures and "service" not in item.path.parts:
        return "tables"
    shared = [each for found in fixtures.values() for each in found if each.scope == "module"]
    return item.path.stem if shared else None


def _needs(marker: pytest.Mark) -> Version:
    return Version(marker.args[0])


def _skipped(config: pytest.Config) -> list[pytest.TestReport | pytest.CollectReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return [] if reporter is None else reporter.stats.get("skipped", [])
