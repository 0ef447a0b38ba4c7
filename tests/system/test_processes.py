"""The harness itself: whatever ends its owner, nothing that it started is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.stack import ProcessGroup, wait_until
from scripts.stack.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import os, sys, time
from scripts.stack import ProcessGroup
group = ProcessGroup()
folder = group.temporary_folder("crew-harness-")
# As Airflow's tasks do: a child in a process group of its own, which a signal to its parent's group would miss.
command = ["bash", "-c", f"set -m; ({sys.argv[1]}; sleep 300) & wait"]
component = group.start("bash", command, os.environ, folder / "log")
while len(component.processes()) < 2:
    time.sleep(0.05)
print(folder, *(process.pid for process in component.processes()), flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("number", "child"), [(signal.SIGKILL, "trap '' TERM"), (signal.SIGTERM, "true"), (signal.SIGINT, "true")]
)
def test_a_signalled_owner_leaves_nothing_behind(number: int, child: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, child], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    folder, *pids = owner.stdout.readline().split()
    assert len(pids) == 2
    owner.send_signal(number)
    owner.wait(timeout=PATIENCE)
    wait_until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids), "the end of all processes")
    wait_until(lambda: not Path(folder).exists(), "the end of the folder")


def test_a_killed_component_leaves_no_child_and_starts_again() -> None:
    with ProcessGroup() as group:
        folder = group.temporary_folder("crew-harness-")
        command = ["bash", "-c", "set -m; sleep 300 & wait"]
        first = group.start("one", command, os.environ, folder / "log")
        wait_until(lambda: len(first.processes()) == 2, "the child")
        first.kill()
        assert first.processes() == []
        assert not first.alive
        again = group.start("one", command, os.environ, folder / "log")
        assert again.alive
    assert not again.alive
    assert not folder.exists()
