"""The folder for temporary files (``TMPDIR``) of each crew's process: made when it is forked, deleted once it is gone.

The process itself cannot delete it, because it may be killed; nor can the service, because exit handlers, and whatever
the crew leaves behind, may still use it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crew_service.crewai import execution_files

VARIABLE = "TMPDIR"


@dataclass(frozen=True)
class TemporaryFolder:
    path: Path
    lock: int  # a descriptor; another process deletes the folder only if nobody has one

    @classmethod
    def make(cls) -> TemporaryFolder:
        path = Path(tempfile.mkdtemp(prefix="tmp-", dir=execution_files.root()))
        return cls(path, execution_files.kept(path))

    def use(self) -> None:
        """In the crew's process, make it the place for temporary files."""
        os.environ[VARIABLE] = tempfile.tempdir = str(self.path)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.lock)


class LeftFolders:
    """The folders of processes that are gone."""

    def __init__(self) -> None:
        self._left: list[TemporaryFolder] = []
        self.deleting: set[int] = set()  # processes

    def __bool__(self) -> bool:
        return bool(self._left or self.deleting)

    def add(self, folder: TemporaryFolder) -> None:
        self._left.append(folder)

    def delete(self, *, at_once: bool = False) -> None:
        """Delete them. One that is not empty may take long, so another process does it, unless `at_once`."""
        full = [folder.path for folder in self._left if not _was_empty(folder.path)]
        if full:
            self._delete(full, at_once=at_once)
        for folder in self._left:
            folder.close()
        self._left.clear()

    def _delete(self, paths: list[Path], *, at_once: bool) -> None:
        pid = None
        if not at_once:
            with suppress(OSError):  # no process is left
                pid = os.fork()
        if pid:
            self.deleting.add(pid)
            return
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
        if pid is not None:
            os._exit(0)


def _was_empty(path: Path) -> bool:
    """Delete a folder if it is empty, as nearly all are."""
    with suppress(OSError):
        path.rmdir()
    return not path.exists()
