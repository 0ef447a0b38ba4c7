"""Gives every segment its own process, forked within milliseconds from one that has already imported CrewAI.

Such a fork server serves the crews of one world. It starts when one of them first needs it, and if it has no work, it
may leave again: each takes 190 MB.

The service keeps one end of a socket to each process: however the service dies, the crews die with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from importlib.metadata import version

from crew_service import versions
from crew_service.crewai import execution_files, process_tree
from crew_service.crewai.channel import FORK, LEAVE, READY, UNBORN, Channel, Message
from crew_service.crewai.internals import NEWEST, OLDEST
from crew_service.crewai.output import LoadingLog, Output
from crew_service.crewai.process_limits import ProcessWatch
from crew_service.crewai.world import World
from crew_service.restart import PREFIX

SETTINGS = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "CREWAI_TRACING_ENABLED": "false",
}
"""Served crews send nothing to CrewAI and do not query PyPI, unless the environment enables it."""

MOST_IDLE = 4  # fork servers
STARTING = 180.0  # seconds; importing CrewAI takes about five on an idle machine
LONGEST = 4_000  # bytes of why CrewAI cannot be imported
EXIT = 1.0  # seconds for a process to exit after closing its socket


class ProcessPoolClosed(Exception):
    """The fork server cannot be started."""


class CrewProcess:
    """The service's side of one crew process."""

    def __init__(self, channel: Channel, output: Output, pid: int) -> None:
        self._channel = channel
        self._output = output
        self.pid = pid
        self._is_mine = True  # until it has ended or been dismissed
        self._over = ""  # the limit that it exceeded

    def send(self, message: Message) -> None:
        """Send a message to a process that may have died; the next `receive` reports whether it has."""
        with contextlib.suppress(ConnectionError):
            self._channel.send(message)

    def receive(self, timeout: float) -> Message | None:
        """Wait for the next message; return None if the process died without sending one."""
        message = self._channel.receive(timeout)
        if message is None or message["type"] == "died":
            self._is_mine = False
            if self._over:
                return {"type": "failed", "error": self._over, "refused": None, "unanswered": []}
        return message

    def dismiss(self) -> None:
        """Let a process that has sent its outcome exit on its own, which may take several seconds."""
        self._is_mine = False

    def end_over(self, error: str) -> None:
        """Kill the process and its descendants because they exceed a limit; the process then reports that it failed."""
        if self._is_mine:
            self._over = error
            process_tree.end(self.pid)

    def end(self) -> None:
        """Kill the process and its process group, unless it is dead or has been dismissed."""
        if self._is_mine:
            process_tree.kill(self.pid)  # it may have left its own process group
            process_tree.kill_group(self.pid)
        self._channel.close()
        self._output.settle()


class ProcessPools:
    """One pool for each world; `most_idle` limits how many of them keep a fork server without work."""

    def __init__(self, most_idle: int = MOST_IDLE) -> None:
        self.most_idle = most_idle
        self._lock = threading.Lock()
        self._pools: OrderedDict[World, ProcessPool] = OrderedDict()  # the most recently used last

    @contextlib.contextmanager
    def worker(self, world: World, take: Callable[[bytes], None] | None = None) -> Iterator[CrewProcess]:
        with self._lock:
            pool = self._pools.setdefault(world, ProcessPool(world))
            pool.in_use += 1
        try:
            with pool.worker(take) as worker:
                yield worker
        finally:
            with self._lock:
                pool.in_use -= 1
                self._pools.move_to_end(world)
                idle = [each for each in self._pools.values() if each.is_running and not each.in_use]
                for each in idle[: max(0, len(idle) - self.most_idle)]:
                    each.leave()


PROCESSES = ProcessPools()  # of this service
WATCH = ProcessWatch()  # of all of them


class ProcessPool:
    def __init__(self, world: World) -> None:
        self.world = world
        self.in_use = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._was_ready = False

    @property
    def is_running(self) -> bool:
        return self._control is not None

    @contextlib.contextmanager
    def worker(self, take: Callable[[bytes], None] | None = None) -> Iterator[CrewProcess]:
        """Fork a process that waits for its request; its printed output is passed to `take` or, by default, logged."""
        worker = self._born(take or LoadingLog())
        try:
            with WATCH.watching(worker.pid, worker.end_over):
                yield worker
        finally:
            worker.end()

    def leave(self) -> None:
        """Let the fork server exit once the processes that were dismissed have; the next worker starts another."""
        with self._lock:
            control, process = self._control, self._process
            self._control = self._process = None
        if not (control and process):
            return

        def follow() -> None:
            with control, contextlib.suppress(OSError):
                control.sendall(LEAVE)
                process.wait()

        try:
            threading.Thread(target=follow, name="crew-processes-leaving", daemon=True).start()
        except RuntimeError:  # out of threads: closing the connection ends it at once
            control.close()
            process.wait()

    def _born(self, take: Callable[[bytes], None]) -> CrewProcess:
        """Fork, and retry once if the fork server was lost: a process that never started has done nothing."""
        for _ in range(2):
            control = self._alive()
            channel, output = self._fork(control, take)
            message = channel.receive(STARTING)
            if message and message["type"] == "born":
                return CrewProcess(channel, output, message["pid"])
            channel.close()
            if message and message["type"] == UNBORN:
                raise OSError(message["errno"], "a crew's process cannot start")
            self._forget(control)
        if message is None:
            raise _lost()
        raise ProcessPoolClosed("Crew processes exit during startup; check the log for the reason.")

    def _fork(self, control: socket.socket, take: Callable[[bytes], None]) -> tuple[Channel, Output]:
        mine, theirs = socket.socketpair()
        reading, printed = os.pipe()
        with theirs, os.fdopen(printed, "wb"):
            try:
                output = Output(reading, take)
            except RuntimeError:  # no thread could start, so nothing else would close it
                os.close(reading)
                raise
            with contextlib.suppress(OSError):  # the fork server is gone and will not answer
                socket.send_fds(control, [FORK], [theirs.fileno(), printed])
        return Channel(mine), output

    def _alive(self) -> socket.socket:
        with self._lock:
            if self._control is None:
                self._control = self._start()
            return self._control

    def _forget(self, control: socket.socket) -> None:
        with self._lock:
            if self._control is control:
                self._control = None

    def _start(self) -> socket.socket:
        if self._process:
            self._process.kill()
            self._process.wait()
        execution_files.root()  # raises if its processes could have no folder there
        mine, theirs = socket.socketpair()
        place = (str(self.world.folder), str(self.world.dotenv or ""))
        command = [sys.executable, "-m", f"{__package__}.fork_server", str(theirs.fileno()), *place]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**SETTINGS, **environment},
            )
        mine.settimeout(STARTING)
        problem = b""
        with contextlib.suppress(OSError):
            problem = mine.recv(LONGEST)
            if problem == READY:
                mine.settimeout(None)
                self._was_ready = True
                return mine
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT)
        if self._was_ready or self._process.returncode == -signal.SIGKILL:
            raise _lost()
        raise ProcessPoolClosed(_not_imported(problem.decode(errors="replace")))


def _not_imported(problem: str) -> str:
    """Return why CrewAI cannot be imported, and what to do."""
    installed, home = version("crewai"), os.path.expanduser("~")
    message = f"CrewAI {installed} cannot be imported: {problem or 'its process ended'}. See the log."
    if versions.key(installed) < versions.key(OLDEST):
        return f"{message} {OLDEST} or newer is needed."
    if versions.key(installed) > versions.key(NEWEST):
        message = f"{message} The newest version tested is {NEWEST}."
    if not os.access(home, os.W_OK):
        return f"{message} CrewAI writes to the home folder, {home}, which is not writable; set HOME to one that is."
    return message


def _lost() -> OSError:
    """Return a system error: a problem in CrewAI itself would have made the first start fail, without a signal."""
    return OSError(errno.ENOMEM, "the process that crews are forked from was killed")
