"""A run that fails tells why: what its processes wrote, and what `.ci/run` has spent its time on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.stack.waiting import PATIENCE

TESTS = Path(__file__).parent
RED = """
import os, sys
from pathlib import Path
from scripts.stack.processes import ProcessGroup
from scripts.stack.waiting import wait_until

LINES = "print(*(f'line {n} of {sys.argv[1]}' for n in range(1, 101)), sep=chr(10))"

def write(group, name):
    folder = group.temporary_folder("red-")
    command = [sys.executable, "-c", "import sys; " + LINES, name]
    component = group.start(name, command, os.environ, folder / f"{name}.log")
    wait_until(lambda: not component.alive, "the end")

group = ProcessGroup()

def test_that_passes():
    write(group, "earlier")

def test_that_fails(tmp_path):
    write(group, "service")
    (tmp_path / "log-0").write_text("started by hand")
    assert "one" == "another"

def test_at_the_end():
    group.stop()
"""


def test_a_failure_shows_the_last_output_lines_of_its_processes(tmp_path: Path) -> None:
    (tmp_path / "test_red.py").write_text(RED)
    command = [sys.executable, "-m", "pytest", "-p", "failures", "-p", "no:cacheprovider", "-c", os.devnull]
    ran = subprocess.run(
        [*command, f"--rootdir={tmp_path}", f"--basetemp={tmp_path / 'base'}", str(tmp_path / "test_red.py")],
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}", "CREW_CI_STEPS": "make lint 39 s"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    shown = ran.stdout
    assert "test_that_fails" in shown
    assert "AssertionError: assert 'one' == 'another'" in shown
    assert "line 61 of service\n" in shown
    assert "line 100 of service\n" in shown
    assert "line 60 of service\n" not in shown
    assert "started by hand" in shown
    assert "of earlier" not in shown
    assert "make lint 39 s" in shown
