"""Starts and stops components. Each has its own session; only processes in these sessions are ever stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import psutil

from scripts.stack import watchdog

if TYPE_CHECKING:
    from typing import Self

folders: list[Path] = []  # created by this process; they contain the logs of the components that it started


def last_lines(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Component:
    """A running command with its children, and the log file for its output."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.command = list(command)
        self.env = dict(env)
        self.log = log
        self.started = time.time()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                cwd=log.parent,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def session(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """List every living process of this component: the command itself, its workers, and the tasks that they run."""
        return watchdog.members(self.session)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to every process of this component; if it is KILL, wait until they have exited."""
        watchdog.signal_session(self.session, number)
        if number == signal.SIGKILL:
            watchdog.end_sessions([self.session], grace=0)
            self._process.wait()

    def stop(self) -> None:
        watchdog.end_sessions([self.session])
        self._process.wait()

    def tail(self, lines: int = 30) -> str:
        return last_lines(self.log, lines)


class ProcessGroup:
    """Components, and a watchdog that stops them and cleans up even if this process is killed."""

    def __init__(self) -> None:
        self.components: dict[str, Component] = {}
        self._watchdog = subprocess.Popen(
            [sys.executable, watchdog.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> Component:
        component = Component(name, command, env, log)
        self.components[name] = component
        self._order(session=component.session)
        return component

    def temporary_folder(self, prefix: str) -> Path:
        """Create a folder that is deleted when the group stops; CREW_STACK_KEEP=1 keeps it, to inspect the logs."""
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        folders.append(folder)
        if not os.environ.get("CREW_STACK_KEEP"):
            self._order(folder=str(folder))
        return folder

    def drop_at_end(self, server: str, database: str) -> None:
        self._order(server=server, database=database)

    def stop(self) -> None:
        """Stop everything; return once nothing is left."""
        if self._watchdog.stdin and not self._watchdog.stdin.closed:
            self._watchdog.stdin.close()
        self._watchdog.wait()
        for component in self.components.values():
            component.stop()

    def _order(self, **order: str | int) -> None:
        assert self._watchdog.stdin
        print(json.dumps(order), file=self._watchdog.stdin, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
