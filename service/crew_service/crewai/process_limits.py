"""Limits on what the processes of one crew may use together.

They are measured once a second, so for a moment they may use more. A control group would be exact, but a service rarely
may create one.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from crew_service.crewai import process_tree

LOOK = 1.0  # seconds between measurements
SUPPORTED = sys.platform == "linux"
MIB = 1024 * 1024

log = logging.getLogger(__name__)
End = Callable[[str], None]


@dataclass(frozen=True)
class ProcessLimits:
    """Limits on a crew's process and all its descendants; None: no limit."""

    max_memory: int | None = None  # bytes
    max_processes: int | None = None

    def __bool__(self) -> bool:
        return self.max_memory is not None or self.max_processes is not None

    def exceeded(self, pids: Collection[int]) -> str | None:
        """Return the error for processes that exceed a limit together; None if they do not."""
        if self.max_processes is not None and len(pids) > self.max_processes:
            return f"ProcessLimitExceeded: the crew had {len(pids)} processes; --max-processes is {self.max_processes}"
        if self.max_memory is not None and (used := sum(map(process_tree.memory_of, pids))) > self.max_memory:
            most = self.max_memory / MIB
            return f"MemoryLimitExceeded: the crew used {used / MIB:.0f} MiB of memory; --max-memory is {most:g} MiB"
        return None


@dataclass
class Watched:
    end: End
    started: int | None = None  # when the process started, once it has been measured


class ProcessWatch:
    """Ends crews' processes that exceed the limits. Its thread runs while there are some."""

    def __init__(self) -> None:
        self.limits = ProcessLimits()
        self._lock = threading.Lock()
        self._watched: dict[int, Watched] = {}  # by process id
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, pid: int, end: End) -> Iterator[None]:
        """Call `end` with the reason once the process and its descendants exceed a limit."""
        if not self.limits:
            yield
            return
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="crew-limits", daemon=True)
                thread.start()
                self._thread = thread
            self._watched[pid] = Watched(end)
        try:
            yield
        finally:
            with self._lock:
                self._watched.pop(pid, None)

    def _run(self) -> None:
        while True:
            time.sleep(LOOK)
            with self._lock:
                watched = dict(self._watched)
                if not watched:
                    self._thread = None
                    return
            try:
                self._measure(watched)
            except Exception:  # the machine may be out of files
                log.exception("crews' processes cannot be measured now")

    def _measure(self, watched: Mapping[int, Watched]) -> None:
        processes = process_tree.processes()
        for pid, each in watched.items():
            if (process := processes.get(pid)) is None:
                continue
            each.started = each.started or process.started
            if process.started != each.started:  # the process has ended, and another one has its id
                continue
            if error := self.limits.exceeded({pid, *process_tree.descendants_of(pid, processes)}):
                each.end(error)
