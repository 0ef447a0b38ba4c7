"""The folder in which a crew writes its files (``CREW_FILES_DIR``), in the crew's process.

It belongs to one execution, and begins with the files that earlier processes of the execution have written. Whatever
has changed since is sent to the service before the end of a tool call, task or method is reported.
"""

from __future__ import annotations

import base64
import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from crew_service.engine.crew import FilePiece

VARIABLE = "CREW_FILES_DIR"
PIECE = 512 * 1024  # bytes
MOST_ENTRIES = 1_000  # of the folder, in one look

log = logging.getLogger(__name__)
Version = tuple[int, int, int]  # inode, size and time; a file that has the same ones has not changed


class OutputFolder:
    """
    :param largest: bytes of a file; of a larger one only its size is sent
    """

    def __init__(self, path: Path, largest: int) -> None:
        self._path, self._largest = path, largest
        self._looking = threading.Lock()
        self._is_full = False
        self._known = {name: _version(status) for name, status, _ in self._files()}

    def send_changes(self, send: Callable[[FilePiece], None], task_id: str) -> None:
        """Send each file that has changed since the last look; one that changes meanwhile waits for the next look."""
        with self._looking:
            for name, status, folder in self._files():
                if self._known.get(name) != _version(status) and self._send(send, task_id, name, folder):
                    self._known[name] = _version(status)

    def keep(self, path: str, text: str) -> bool:
        """Add a task's output file as it is written, since executions share the place where it is written."""
        name = os.path.relpath(path)
        return self.add(Path(path).name if name.startswith(os.pardir) else name, text)

    def add(self, name: str, text: str) -> bool:
        """Write a text into the folder; return whether that was possible."""
        return self._put(name, lambda target: target.write_text(text, "utf-8"))

    def copy(self, name: str, source: Path) -> None:
        """Copy a file into the folder, unless it is there already."""
        if not source.resolve().is_relative_to(self._path.resolve()):
            self._put(name, lambda target: shutil.copyfile(source, target))

    def _put(self, name: str, write: Callable[[Path], object]) -> bool:
        target = self._path / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target)
        except OSError as error:
            log.warning("the file %s is not among the execution's files: %s", name, error)
            return False
        return True

    def _files(self) -> Iterator[tuple[str, os.stat_result, int]]:
        """Yield the regular files: the relative path, the status, and a descriptor of the folder. Follow no links."""
        try:
            yield from self._walk()
        except OSError as error:  # the crew has deleted the folder, for example
            log.warning("the files in %s are not stored: %s", VARIABLE, error)

    def _walk(self) -> Iterator[tuple[str, os.stat_result, int]]:
        count = 0
        for folder, folders, names, descriptor in os.fwalk(self._path):
            folders.sort()
            for name in sorted(names):
                count += 1
                if count > MOST_ENTRIES:
                    self._tell_full()
                    return
                try:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield os.path.relpath(os.path.join(folder, name), self._path), status, descriptor

    def _tell_full(self) -> None:
        if not self._is_full:
            self._is_full = True
            log.warning("%s has more than %d entries; the others are not stored", VARIABLE, MOST_ENTRIES)

    def _send(self, send: Callable[[FilePiece], None], task_id: str, name: str, folder: int) -> bool:
        """Send a file's pieces; return False if it changed meanwhile or is gone, so that it is not stored."""
        try:
            file = os.open(os.path.basename(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError:
            return False
        try:
            before = os.fstat(file)
            if not stat.S_ISREG(before.st_mode):
                return False
            left = before.st_size if before.st_size <= self._largest else 0
            while left > PIECE and (data := os.read(file, PIECE)):
                left -= len(data)
                send(_piece(name, task_id, before.st_size, data))
            last = os.read(file, left) if left else b""
            is_whole = len(last) == left and _version(os.fstat(file)) == _version(before)
            send(_piece(name, task_id, before.st_size, last if is_whole else None, is_last=True))
            return is_whole
        finally:
            os.close(file)


def _piece(name: str, task_id: str, size: int, data: bytes | None, *, is_last: bool = False) -> FilePiece:
    return FilePiece(name, task_id, size, None if data is None else base64.b64encode(data).decode(), is_last)


def _version(status: os.stat_result) -> Version:
    return status.st_ino, status.st_size, status.st_mtime_ns


_folder: OutputFolder | None = None


def use(path: str, largest: int) -> OutputFolder:
    """Let the crew write into this folder, and return it."""
    global _folder
    os.environ[VARIABLE] = path
    _folder = OutputFolder(Path(path), largest)
    return _folder


def keep(path: str, text: str) -> bool:
    """See `OutputFolder.keep`; do nothing where no execution runs."""
    return _folder is not None and _folder.keep(path, text)


def add(name: str, text: str) -> None:
    """See `OutputFolder.add`; do nothing where no execution runs."""
    if _folder:
        _folder.add(name, text)


def copy(name: str, source: Path) -> None:
    """See `OutputFolder.copy`; do nothing where no execution runs."""
    if _folder:
        _folder.copy(name, source)
