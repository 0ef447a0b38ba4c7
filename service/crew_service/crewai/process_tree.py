"""Finds and kills all processes that a crew started, even after a new session or a double fork.

On Linux, a process whose parent has died is adopted by its nearest ancestor that is a subreaper. On other systems, only
the crew's process group is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path

SET_CHILD_SUBREAPER = 36  # for prctl(2)
TRIES = 200  # rounds before giving up on a process that forks faster than it is killed
PAUSE = 0.02


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies; children do not inherit this setting."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(pid: int) -> set[int]:
    return {child for child, parent in _parents().items() if parent == pid}


def descendants_of(pid: int) -> set[int]:
    parents = _parents()
    found: set[int] = set()
    generation = {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation} - found
        found |= generation
    return found


def end_descendants(spared: Collection[int] = ()) -> None:
    """Kill all descendants of this process, except `spared`, until none are left."""
    for _ in range(TRIES):
        left = {pid for pid in descendants_of(os.getpid()) if pid not in spared}
        if not left:
            return
        for pid in left:
            kill(pid)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(PAUSE)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _parents() -> dict[int, int]:
    """Map the id of each process to its parent's id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found
