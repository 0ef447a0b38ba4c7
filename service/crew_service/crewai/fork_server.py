"""Forks the processes of the crews of one world. It has imported CrewAI there, and runs no user code.

It has no threads but those of libraries that start theirs again in each child.

It forks on request and reports each child's exit to the service. It exits when the service does, or on request as soon
as it has no children. Processes that a crew leaves behind become children of this process and are killed. A child that
the service has dismissed is also killed if it does not exit by itself, because it may hold a lock that others are
waiting for.

Each child has a folder for temporary files, which is deleted when it and all that it left behind are gone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from crew_service import versions
from crew_service.crewai import process_tree, world
from crew_service.crewai.channel import LEAVE, READY, UNBORN
from crew_service.crewai.temporary_folders import LeftFolders, TemporaryFolder

LEFT = 15.0  # seconds for a dismissed process to exit; normally, it takes at most five
LONGEST = 1_000  # characters of an error
LOOK = 5.0  # seconds between checks of the processes


class ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._links: dict[int, socket.socket] = {}
        self._folders: dict[int, TemporaryFolder] = {}  # of the same processes
        self._left_folders = LeftFolders()
        self._left: dict[int, float] = {}  # processes whose link the service closed, and when that was noticed
        self._is_leaving = False
        self._own = process_tree.children_of(os.getpid())  # children that CrewAI started on import
        self._deaths, bell = socket.socketpair()
        for end in (self._deaths, bell):
            end.setblocking(False)
        self._bell = bell
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, the signal does not wake the loop
        signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)

    def serve(self) -> socket.socket | None:
        """Serve until the service exits, then return None; in a forked child, return the child's link."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._deaths, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(LOOK if self._links else None)]
                self._end_left()
                if self._deaths in ready:
                    self._bury()
                if self._control in ready:
                    message, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
                    if not message:
                        break
                    if message == LEAVE:
                        self._is_leaving = True
                    elif link := self._fork(*descriptors):
                        return link
                if self._is_leaving and not (self._links or self._left_folders):
                    break
        process_tree.end_descendants(self._own)
        for folder in self._folders.values():
            self._left_folders.add(folder)
        self._left_folders.delete(at_once=True)
        return None

    def _fork(self, link: int, printed: int) -> socket.socket | None:
        """Fork; return the link in the child and None in the parent."""
        folder = None
        try:
            folder = TemporaryFolder.make()
            pid = os.fork()
        except OSError as error:  # out of process slots, memory or space
            os.close(printed)
            if folder:
                self._left_folders.add(folder)
            with socket.socket(fileno=link) as unborn, contextlib.suppress(OSError):
                unborn.sendall(json.dumps({"type": UNBORN, "errno": error.errno}).encode() + b"\n")
            return None
        if pid:
            os.close(printed)
            self._links[pid], self._folders[pid] = socket.socket(fileno=link), folder
            return None
        os.setsid()
        process_tree.adopt_orphans()
        for stream in (1, 2):
            os.dup2(printed, stream)
        os.close(printed)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that output survives a kill
        os.set_inheritable(link, False)
        self._forget()
        folder.use()
        if numpy := sys.modules.get("numpy"):  # Python's own generator reseeds itself after a fork; NumPy's does not
            numpy.random.seed()
        return socket.socket(fileno=link)

    def _forget(self) -> None:
        """In the child, close the fork server's sockets and what belongs to other crews; restore signal handling."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for link in (self._control, self._deaths, self._bell, *self._links.values()):
            link.close()
        for folder in self._folders.values():
            folder.close()

    def _end_left(self) -> None:
        for pid, link in self._links.items():
            if _is_left(link) and time.monotonic() - self._left.setdefault(pid, time.monotonic()) > LEFT:
                process_tree.kill(pid)

    def _bury(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._deaths.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while (death := os.waitpid(-1, os.WNOHANG))[0]:
                self._tell(death[0], os.waitstatus_to_exitcode(death[1]))
        known = self._own | self._links.keys() | self._left_folders.deleting
        orphans = process_tree.children_of(os.getpid()) - known
        for orphan in orphans:
            process_tree.kill(orphan)  # its children become orphans in turn, and its exit wakes the loop again
        if not orphans:
            self._left_folders.delete()

    def _tell(self, pid: int, code: int) -> None:
        self._left.pop(pid, None)
        self._left_folders.deleting.discard(pid)
        if folder := self._folders.pop(pid, None):
            self._left_folders.add(folder)
        notice = b"\n" + json.dumps({"type": "died", "code": code}).encode() + b"\n"
        if link := self._links.pop(pid, None):  # otherwise, a finished crew left `pid` behind
            with link, contextlib.suppress(OSError):
                link.send(notice, socket.MSG_DONTWAIT)


def _is_left(link: socket.socket) -> bool:
    """Whether the service has closed its end; do not read any data, because it is meant for the process."""
    poll = select.poll()
    poll.register(link, 0)
    return bool(poll.poll(0))


@contextlib.contextmanager
def _telling(control: socket.socket) -> Iterator[None]:
    """Tell the service why CrewAI cannot be imported."""
    try:
        yield
    except BaseException as error:
        control.sendall(f"{type(error).__name__}: {error}"[:LONGEST].encode(errors="backslashreplace"))
        raise


def late_imports() -> tuple[str, ...]:
    """Return what each crew's process would import again: OpenAI's client, and the database of a Flow's memory.

    LanceDB has a thread, which only its newer releases start again in a child. Of others, it is a part of the import.
    """
    try:
        has_forks = versions.key(version("lancedb")) >= versions.key("0.40")
    except PackageNotFoundError:
        has_forks = False
    return "openai.resources", "lancedb" if has_forks else "lance_namespace"


def main() -> None:
    """Take as arguments the descriptor of the socket to the service, the crews' folder and their `.env` (or "")."""
    for output in (sys.stdout, sys.stderr):  # the service reads UTF-8, whatever the locale
        output.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    folder, dotenv = Path(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3] else None
    variables: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):  # each crew's process tries again and reports it
        os.chdir(folder)
        variables = world.load_variables(dotenv)
    world.keep_out_others(dotenv)
    gc.disable()  # imports create no garbage; looking for it takes up a tenth of the startup time
    with _telling(control):
        from crew_service.crewai.child_process import work  # imports CrewAI
        from crew_service.crewai.internals import Seam, stored_memory

        Seam.told()  # imports what the names are in
        stored_memory.share_locks()

    for name in late_imports():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in variables:  # each crew's process reads the file as it is then
        os.environ.pop(name, None)
    # They warn about libraries that are at work during a fork, of which here is none.
    warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    process_tree.adopt_orphans()
    sys.stdout.flush()  # otherwise each child would print it again
    gc.enable()
    gc.freeze()  # so that garbage collection in a child does not copy shared pages
    control.sendall(READY)
    if link := ForkServer(control).serve():
        work(link, dotenv)


if __name__ == "__main__":
    main()
