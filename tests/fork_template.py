"""Starts commands of the service as forks of a process that has imported its modules.

By itself a start takes 0.8 s of CPU, and six more to import CrewAI; the tests start hundreds. A forked command is a
process like any other: it has arguments, environment, folder and streams of its own, and takes signals. What an
interpreter or a C library reads when it starts is the template's, and so are the command line and the environment
in /proc: for tests of those, `Command` takes `fresh=True`.

All workers of xdist share that process, which their controller starts.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

SERVICE = "crew_service"
COMMAND = "airflow-crew-service"
CREWS = "crew_service.crewai.fork_server"
IMPORTED = {
    SERVICE: ["crew_service.cli", "crew_service.crewai.crew", "alembic.command"],
    CREWS: ["crew_service.crewai.child_process"],
}
SHARED = "CREW_TESTS_TEMPLATES"  # the folder of the sockets
LARGEST = 128 * 1024  # bytes of a request; most of it is the environment


class Forked:
    """A process that runs a module as `python -m` does; used like `subprocess.Popen`."""

    def __init__(self, templates: str, module: str, files: Sequence[int], **request: Any) -> None:
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.connect(f"{templates}/{module}")
        socket.send_fds(self._link, [json.dumps(request).encode()], files)
        self.pid = int(self._link.recv(LARGEST))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                if not select.select([self._link], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"the process {self.pid}", timeout or 0)
                self.returncode = int(self._link.recv(LARGEST))
                self._link.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedCommand(Forked):
    """`python -m crew_service WORDS`; `stdout` is a pipe, and `limit` is of the files that it may open."""

    def __init__(
        self, words: Sequence[str], cwd: Path, stderr: int, env: Mapping[str, str], limit: int | None = None
    ) -> None:
        reading, writing = os.pipe()
        self.stdout = os.fdopen(reading)
        request = {"words": words, "cwd": str(cwd), "env": dict(env), "limit": limit, "crews": _templates()}
        with os.fdopen(writing, "wb"):
            super().__init__(_templates(), SERVICE, [writing, stderr], **request)


def share() -> None:
    """Start the template for all workers, in their controller."""
    os.environ[SHARED] = _templates()


@functools.cache
def _templates() -> str:
    """Return the folder of the template's sockets; one that the controller did not start ends with this process."""
    if SHARED in os.environ:
        return os.environ[SHARED]
    sockets = tempfile.TemporaryDirectory(prefix="crew-forks-")
    listeners = {module: _listener(f"{sockets.name}/{module}") for module in (SERVICE, CREWS)}
    template = _start(SERVICE, *listeners.values())
    atexit.register(sockets.cleanup)
    atexit.register(template.wait)
    atexit.register(template.stdin.close)  # type: ignore[union-attr]
    return sockets.name


def _listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    return listener


def _start(module: str, *listeners: socket.socket) -> subprocess.Popen[bytes]:
    """Start the template of a module; the connections that come until it is ready wait."""
    numbers = [listener.fileno() for listener in listeners]
    command = [sys.executable, __file__, module, *map(str, numbers)]
    template = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=numbers, start_new_session=True)
    for listener in listeners:
        listener.close()
    return template


class Template:
    """Forks at each connection, and says there how the process ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._links: dict[int, socket.socket] = {}
        self._deaths, self._bell = socket.socketpair()
        for end in (self._deaths, self._bell):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler the bell does not ring
        signal.set_wakeup_fd(self._bell.fileno())

    def serve(self, crews: socket.socket | None = None) -> tuple[dict[str, Any], list[int]]:
        """Serve to the end of stdin; a child returns with its request. `crews` wakes the template of crews."""
        running = None
        while True:
            ready, _, _ = select.select([0, self._listener, self._deaths, *filter(None, [crews])], [], [])
            if 0 in ready:
                self._end()
            if self._deaths in ready:
                self._bury()
            if crews in ready:
                running, crews = _start(CREWS, crews), None
            if self._listener in ready:
                link, _ = self._listener.accept()
                message, files, _, _ = socket.recv_fds(link, LARGEST, 8)
                if self._is_child(link, files):
                    for each in (crews, running and running.stdin):
                        if each:
                            each.close()
                    return json.loads(message), files

    def _is_child(self, link: socket.socket, files: list[int]) -> bool:
        if pid := os.fork():
            self._links[pid] = link
            for each in files:
                os.close(each)
            link.sendall(str(pid).encode())
            return False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (link, self._listener, self._deaths, self._bell, *self._links.values()):
            each.close()
        return True

    def _bury(self) -> None:
        self._deaths.recv(LARGEST)
        with contextlib.suppress(ChildProcessError):
            while (death := os.waitpid(-1, os.WNOHANG))[0]:
                if link := self._links.pop(death[0], None):
                    with link, contextlib.suppress(OSError):
                        link.sendall(str(os.waitstatus_to_exitcode(death[1])).encode())

    def _end(self) -> NoReturn:
        for pid in self._links:
            os.kill(pid, signal.SIGKILL)
        sys.exit()


@contextlib.contextmanager
def forked_services() -> Iterator[None]:
    """Fork the services that stacks start, except those of other code than this process's."""
    from scripts.stack import processes

    def started(command: Sequence[str], **options: Any) -> Forked | subprocess.Popen[bytes]:
        script, *words = command
        env = options.get("env", {})
        if Path(script).name != COMMAND or env.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
            return subprocess.Popen(command, **options)
        request = {"words": words, "cwd": str(options["cwd"]), "env": dict(env), "crews": _templates()}
        return Forked(_templates(), SERVICE, [options["stdout"].fileno()] * 2, **request, leads_session=True)

    with _starting(processes, started):
        yield


@contextlib.contextmanager
def forked_crews(templates: str | None = None) -> Iterator[None]:
    """Fork the crews' process of this process as well."""
    from crew_service.crewai import process_pool

    def started(command: list[str], **options: Any) -> Forked:
        files = [1, 2, *options["pass_fds"]]
        return Forked(
            templates or _templates(), CREWS, files, cwd=os.getcwd(), env=dict(options["env"]), words=command[4:]
        )

    with _starting(process_pool, started):
        yield


@contextlib.contextmanager
def _starting(module: Any, started: Callable[..., Any]) -> Iterator[None]:
    """Let a module start its processes with `started`."""
    before = module.subprocess
    module.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": started})
    try:
        yield
    finally:
        module.subprocess = before


class Executed(BaseException):
    """The process would be replaced by the same module with other words."""


def _serve(request: dict[str, Any]) -> int:
    """Run the command; the crews' process, which it starts, is forked as well."""
    from crew_service import __main__

    def executed(path: str, command: list[str], environment: dict[str, str]) -> NoReturn:
        sys.argv = [SERVICE, *command[3:]]
        sys.orig_argv = command
        os.environ.clear()
        os.environ.update(environment)
        raise Executed

    os.execve = executed  # type: ignore[assignment]
    with forked_crews(request["crews"]):
        with contextlib.suppress(Executed):
            return __main__.main()
        return __main__.main()


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Take over what a process is started with, with new streams: the old ones know another kind of file."""
    for name, file in zip(("stdout", "stderr"), files, strict=False):
        old = getattr(sys, name)
        os.dup2(file, old.fileno())
        os.close(file)
        buffering = 1 if old.line_buffering else -1
        new = os.fdopen(old.fileno(), "w", buffering, old.encoding, old.errors, closefd=False)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # of the template's TMPDIR
    sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def main() -> int:
    module, *numbers = sys.argv[1:]
    del sys.path[0]  # the folder of this file
    gc.disable()
    warnings.filterwarnings("ignore", "lancedb fork support")  # nothing has used it before a fork
    names = IMPORTED[module]
    if module == CREWS:
        names = [*names, *importlib.import_module(CREWS).late_imports()]
    for name in names:
        with contextlib.suppress(ImportError):  # the command says what is missing
            importlib.import_module(name)
    gc.enable()
    gc.freeze()
    request, files = Template(*map(_inherited, numbers[:1])).serve(*map(_inherited, numbers[1:]))
    _become(request, files)
    if module == SERVICE:
        sys.argv = [SERVICE, *request["words"]]
        sys.orig_argv = [sys.executable, "-m", *sys.argv]
        if request.get("leads_session"):
            os.setsid()
        if limit := request.get("limit"):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        return _serve(request)
    os.setsid()
    sys.argv = [CREWS, str(files[2]), *request["words"]]
    importlib.import_module(CREWS).main()
    return 0


def _inherited(number: str) -> socket.socket:
    listener = socket.socket(fileno=int(number))
    listener.set_inheritable(False)
    return listener


if __name__ == "__main__":
    sys.exit(main())
