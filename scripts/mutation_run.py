"""Tests each mutant with the tests that execute it: they are collected once, and a process is forked for each mutant.

`mutmut` writes the mutants; its own runner collects the tests again for each of them, which takes most of the time.
This module is both a command and the pytest plugin that runs in the folder with the mutants. ``MUTANTS`` selects
mutants by patterns, e.g. ``wait.watch.* kickoff.request.*``; the results of the others are kept.
"""

from __future__ import annotations

import fnmatch
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state

CHILDREN = 2
PACKAGES = ("airflow_crew_provider", "service.crew_service")
SURVIVED, KILLED, WITHOUT_TESTS = 0, 1, 33
# CPU time for all tests of a mutant, in case it never ends; pytest's `timeout` limits each test.
SECONDS = 60


def main() -> int:
    _write_mutants()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "scripts.mutation_run",
        "--rootdir=.",
        "-q",
        "-s",
        "--tb=no",
        "-o",
        "timeout=30",
    ]
    chosen = [*config().pytest_add_cli_args, *config().pytest_add_cli_args_test_selection]
    return subprocess.call([*command, *chosen], cwd="mutants")


def _write_mutants() -> None:
    set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.create_mutants(CHILDREN)
    del os.environ["MUTANT_UNDER_TEST"]


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Test the mutants instead of running the tests once."""
    reached, times = _reached(session)
    print(f"{len(session.items)} tests, {len(reached)} functions reached", flush=True)
    gc.freeze()  # or garbage collection in a child would copy all of this memory
    patterns = os.environ.get("MUTANTS", "*").split()
    wanted = [f"{package}.{each}" for package in PACKAGES for each in patterns]
    for meta in sorted(Path().rglob("*.meta")):
        _try_all(session, meta, wanted, reached, times)
    return True


def _try_all(session: Any, meta: Path, wanted: list[str], reached: Any, times: dict[str, float]) -> None:
    kept = json.loads(meta.read_text())
    names = [name for name in kept["exit_code_by_key"] if any(fnmatch.fnmatch(name, each) for each in wanted)]
    if not names:
        return
    running: dict[int, str] = {}
    began = time.time()
    for name in names:
        items = [item for item in session.items if item.nodeid in reached[_imported(name).partition("__mutmut_")[0]]]
        items.sort(key=lambda item: times[item.nodeid])
        if not items:
            kept["exit_code_by_key"][name] = WITHOUT_TESTS
            continue
        while len(running) >= CHILDREN:
            _take_one(running, kept)
            meta.write_text(json.dumps(kept, indent=4))
        running[_fork(session, name, items)] = name
    while running:
        _take_one(running, kept)
    meta.write_text(json.dumps(kept, indent=4))
    left = [name for name in names if kept["exit_code_by_key"][name] in (SURVIVED, WITHOUT_TESTS)]
    print(f"{meta}: {len(names)} mutants, {len(left)} left, {time.time() - began:.0f} s", flush=True)


def _imported(mutant: str) -> str:
    """Return a mutant's name with the module as tests import it: mutmut names it by its path."""
    return mutant.removeprefix("service.")


def _take_one(running: dict[int, str], kept: Any) -> None:
    pid, status = os.wait()
    kept["exit_code_by_key"][running.pop(pid)] = os.waitstatus_to_exitcode(status)


def _fork(session: pytest.Session, mutant: str, items: Sequence[pytest.Item]) -> int:
    def child() -> int:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        set_mutant_under_test(_imported(mutant))
        _run(session, items, lambda item: None)
        return SURVIVED

    return _in_child(child)


def _in_child(act: Callable[[], int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1), os.dup2(silent, 2)
    code = KILLED
    try:
        code = act()
    finally:
        os._exit(code)


def _run(session: pytest.Session, items: Sequence[pytest.Item], after: Callable[[pytest.Item], None]) -> None:
    """Run tests; end the process as soon as one fails."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            os._exit(KILLED)
        after(item)


def _reached(session: pytest.Session) -> tuple[dict[str, set[str]], dict[str, float]]:
    """Run the tests without a mutant; return the tests that execute each function, and how long each test takes."""
    kept = Path(f"reached-{os.getpid()}.json")

    def child() -> int:
        set_mutant_under_test("stats")
        tests, times, at = defaultdict(list), {}, [time.time()]

        def after(item: pytest.Item) -> None:
            times[item.nodeid] = time.time() - at[0]
            at[0] = time.time()
            for function in state()._stats:
                tests[function].append(item.nodeid)
            state()._stats.clear()

        _run(session, session.items, after)
        kept.write_text(json.dumps([tests, times]))
        return SURVIVED

    _, status = os.waitpid(_in_child(child), 0)
    if os.waitstatus_to_exitcode(status) != SURVIVED:
        pytest.exit("A test fails without any mutant; run the tests to see which one", 1)
    tests, times = json.loads(kept.read_text())
    kept.unlink()
    return defaultdict(set, {function: set(names) for function, names in tests.items()}), times


if __name__ == "__main__":
    sys.exit(main())
