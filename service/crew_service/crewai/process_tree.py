"""Finds, measures and kills all processes that a crew started, even after a new session or a double fork.

On Linux, a process whose parent has died is adopted by its nearest ancestor that is a subreaper. On other systems, only
the crew's process group is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

SET_CHILD_SUBREAPER = 36  # for prctl(2)
TRIES = 200  # rounds before giving up on a process that forks faster than it is killed
PAUSE = 0.02


class Process(NamedTuple):
    parent: int
    group: int
    started: int  # after the machine's start; with the id, it identifies a process


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies; children do not inherit this setting."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(pid: int) -> set[int]:
    return {child for child, process in processes().items() if process.parent == pid}


def descendants_of(pid: int, among: Mapping[int, Process] | None = None) -> set[int]:
    among = processes() if among is None else among
    descendants: set[int] = set()
    generation = {pid}
    while generation:
        generation = {child for child, process in among.items() if process.parent in generation} - descendants
        descendants |= generation
    return descendants


def end(pid: int) -> None:
    """Kill a crew's process and all its descendants. Those of one group die at once, so that they cannot fork on."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)  # so that it does not report that its children failed
    killed = {pid}
    for _ in range(TRIES):
        running = processes()
        groups = {running[each].group for each in descendants_of(pid, running)} - killed
        if not groups:
            break
        for group in groups:
            kill_group(group)
        killed |= groups
    kill(pid)
    kill_group(pid)


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


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def memory_of(pid: int) -> int:
    """Return the bytes of memory that a process uses; of what it shares with others, its part, if that is known."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError):  # all that it has in memory: a process can keep others from the parts
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def processes() -> dict[int, Process]:
    """Return the processes of this machine, by id."""
    by_id = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            by_id[int(folder.name)] = Process(parent=int(stat[1]), group=int(stat[2]), started=int(stat[19]))
    return by_id
