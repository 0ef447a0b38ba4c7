"""An execution's files: laid out by the service, and read from there by the crew's process.

A file's path consists of the execution's id and the file's hash, so that a Flow's state, and a recorded request to a
model, name the same file in every process of the execution. The folder is deleted when the last segment that uses it
ends or, if the service was killed, when the next one starts.

What the crew writes has a folder below, of this segment alone: a service that has lost the execution to another one on
the same machine may not know it yet, and its crew still writes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from crew_service.crewai.file_types import ANY, LIBRARY, TYPED
from crew_service.engine.crew import InputFile, Job
from crew_service.engine.file_inputs import SOURCE as KEY
from crew_service.engine.file_inputs import FileInputs, hash_in, replaced

MISSING = (
    "This service takes no files because crewai-files is not installed. Install airflow-crew-service[files]; nothing "
    "was started."
)
WRITTEN = "files"  # the folder for what the crew writes
SUFFIXES = {
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/webp": ".webp",
    "text/plain": ".txt",
}


def problem() -> str | None:
    """Return why CrewAI can be given no files here, as a sentence; None if it can."""
    with suppress(ModuleNotFoundError):
        if find_spec(LIBRARY):
            return None
    return MISSING


@contextmanager
def laid_out(job: Job) -> Iterator[tuple[str, str]]:
    """Write the execution's files into a folder, and those that its crew has written into another; yield both paths."""
    folder = root() / job.execution_id
    with ExitStack() as locks:
        lock = kept(folder)
        locks.callback(os.close, lock)
        try:
            for file in job.files:
                _write(_path(folder, file), job.read_file(file))
            written = _free(folder, locks)
            for file in job.written():
                path = written / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(path, job.read_file(file))
            yield str(folder), str(written)
        finally:
            with suppress(OSError):  # another segment of the execution uses it
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _free(folder: Path, locks: ExitStack) -> Path:
    """Return an empty folder that nobody uses; nearly always the first one, whose name a model may have been told."""
    number = 0
    while True:
        number += 1
        lock = os.open(folder / f"{WRITTEN}-{number}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        locks.callback(os.close, lock)
        path = folder / (WRITTEN if number == 1 else f"{WRITTEN}-{number}")
        with suppress(BlockingIOError, FileExistsError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)  # of a process that was killed
            path.mkdir()
            return path


def _path(folder: Path, file: InputFile) -> Path:
    return folder / (file.sha256 + SUFFIXES.get(file.content_type, ""))


def kept(folder: Path) -> int:
    """Create the folder, if it is missing, and keep others from deleting it until the descriptor is closed."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.stat(folder).st_ino == os.fstat(lock).st_ino:
                    return lock
            os.close(lock)


def _write(path: Path, pieces: Iterator[bytes]) -> None:
    if path.exists():
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as target:
        target.writelines(pieces)
    Path(target.name).replace(path)


def root() -> Path:
    """Return the folder for all executions; make it again if it was deleted, as is what nobody has used for days."""
    path = Path(tempfile.gettempdir()) / f"airflow-crew-service-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise PermissionError(f"the folder {path} belongs to another user")
    _clean(path)
    return path


@cache
def _clean(path: Path) -> None:
    """Delete, once, the folders that killed processes have left there."""
    for left in path.iterdir():
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


# --- in the crew's process ---


_folder = Path()


def use(folder: str) -> None:
    """Read files from this folder."""
    global _folder
    _folder = Path(folder)


def of_kickoff(job: Job) -> dict[str, Any]:
    """Return the argument with the files that CrewAI does not take among the inputs, if there are any."""
    named = {file.name: file for file in job.files if not file.in_inputs}
    if not named:
        return {}
    from crewai_files import File  # may not be installed

    return {"input_files": {name: File(source=_source(file)) for name, file in named.items()}}


def in_inputs(job: Job, places: FileInputs) -> dict[str, Any]:
    """Return the inputs with files for CrewAI instead of their hashes.

    :raises LookupError: if another value is in the place of a file; its argument is that place
    """
    known = {file.sha256: file for file in job.files if file.in_inputs}
    values: dict[tuple[str | int, ...], Any] = {}
    for place in places.given(job.inputs):
        file = known.get(hash_in({KEY: place.address}) or "")
        if file is None:
            raise LookupError(place.name)
        values[place.path] = _value(_source(file), place.kinds)
    inputs: dict[str, Any] = replaced(job.inputs, values)
    return inputs


def _value(source: Any, kinds: Collection[str]) -> Any:
    from crewai_files import File

    if ANY in kinds:
        return File(source=source)
    return {KEY: source} if TYPED in kinds else source


def _source(file: InputFile) -> Any:
    from crew_service.crewai.execution_file import ExecutionFile  # imports CrewAI's library

    return ExecutionFile(path=_path(_folder, file))
