"""A test that fails tells why: its report has the last lines of each log that its processes wrote meanwhile.

Without them a failure that does not come again, on a machine that is gone, is never explained.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest

from scripts.stack import processes

LINES = 40  # of each log
MOST = 25  # logs, the latest ones: an Airflow has one for each try of each task
BEGAN = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    began = item.stash.setdefault(BEGAN, call.start)
    if report.failed:
        for path in written_since(began, _folders(item)):
            report.sections.append((f"last lines of {path}", processes.last_lines(path, LINES)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long each step of `.ci/run` has taken."""
    if steps := os.environ.get("CREW_CI_STEPS"):
        terminalreporter.section("seconds of each step before this one")
        terminalreporter.line(steps)


def written_since(began: float, folders: Iterable[Path]) -> list[Path]:
    """Return the logs below some folders that have been written to since then, the latest last."""
    logs = sorted(_logs(folders), key=_changed)
    return [path for path in logs if _changed(path) >= began][-MOST:]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # a process has removed it meanwhile
        return 0.0


def _folders(item: pytest.Item) -> list[Path]:
    """Return where processes of this worker write: those of a stack, and those that a test started by itself."""
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    return [*processes.folders, factory.getbasetemp()]


def _logs(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for pattern in ("*.log", "log-*"):
            yield from (path for path in folder.rglob(pattern) if path.is_file())
