"""Files that callers upload for an execution: what they are, their limits and owners.

An upload is stored piece by piece, each in a transaction of its own, and becomes a file with the last write. It belongs
to its owner until one kickoff uses it, and from then on to that execution. Unused uploads are deleted after an hour.
"""

from __future__ import annotations

import codecs
import hashlib
import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection

from crew_service.engine import retrying
from crew_service.engine.crew import Cancellation, InputFile
from crew_service.engine.decisions import Refused
from crew_service.settings import FileLimits
from crew_service.storage import files
from crew_service.storage.database import Database

PIECE = 1024 * 1024  # bytes
MOST_FILES = 200  # of an execution
UNUSED_OF_OWNER = 4  # times the limit of an execution
KEPT_UNUSED = 3600.0  # seconds
ADDRESS = re.compile(r"([^?#]*/files/)?(?P<id>[A-Za-z0-9_-]{43})")
OTHER = "application/octet-stream"
TEXT = "text/plain"
SIGNATURES = {
    b"%PDF-": "application/pdf",
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"PK\x03\x04": "application/zip",
    b"PK\x05\x06": "application/zip",
}


class TooLarge(Exception):
    """A file, or all files of an execution, exceed their limit."""


class OwnerFull(Exception):
    """The owner's unused uploads exceed their limit."""


class StoreFull(Exception):
    """The service's files exceed their limit."""


class FileGone(LookupError):
    """A file was deleted, with its execution, before all of it was read."""


class UnknownFile(Refused):
    """An address is not that of an unused file of this owner."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The file for the input {name!r} is unknown: only its uploader can use it, for one execution and within "
            "an hour. Upload it again; nothing was started."
        )


def id_in(address: str) -> str | None:
    """Return the id in the address of a file; its host and base may be those of another machine or a proxy."""
    match = ADDRESS.fullmatch(address)
    return match["id"] if match else None


@dataclass(frozen=True)
class StoredFile:
    id: str
    size: int
    sha256: str
    content_type: str

    def of_input(self, name: str, *, in_inputs: bool = False) -> InputFile:
        return InputFile(name, **asdict(self), in_inputs=in_inputs)


class Files:
    def __init__(self, database: Database, limits: FileLimits) -> None:
        self._database = database
        self.limits = limits

    def begin(self, owner: str, size: int | None = None) -> Upload:
        """Reserve room for a file of at most this size.

        :raises OwnerFull: if the owner has too many unused uploads
        :raises StoreFull: if the service has too many files
        """
        most = self.limits.of_file if size is None else min(size, self.limits.of_file)
        file_id = secrets.token_urlsafe(32)
        with self._database.writing() as connection:
            files.lock(connection)
            if files.total(connection, unused_of=owner) + most > UNUSED_OF_OWNER * self.limits.of_execution:
                raise OwnerFull
            if self.limits.of_all is not None and files.total(connection) + most > self.limits.of_all:
                raise StoreFull
            files.begin(connection, file_id, owner=owner, size=most, now=self._database.now())
        return Upload(self._database, file_id, self.limits.of_file)

    def find(self, owner: str, ids: Collection[str]) -> dict[str, StoredFile]:
        """Return an owner's files by id, including used ones."""
        if not ids:
            return {}
        with self._database.reading() as connection:
            rows = files.find(connection, owner, ids)
        return {row.id: StoredFile(row.id, row.size, row.sha256, row.content_type) for row in rows}

    def reading(self) -> AbstractContextManager[Connection]:
        return self._database.reading()

    def read(self, file: StoredFile) -> Iterator[bytes]:
        """Yield a file's pieces, as `read` does, but fail if the database is unavailable."""
        return read(self._database, file.of_input(file.id))

    def discard(self, ids: Collection[str]) -> None:
        """Delete those that no execution uses."""
        with self._database.writing() as connection:
            files.discard(connection, ids)


class Upload:
    """A file on its way into the database."""

    def __init__(self, database: Database, file_id: str, most: int) -> None:
        self.id = file_id
        self.size = 0
        self._database = database
        self._most = most
        self._pieces = 0
        self._hash = hashlib.sha256()
        self._type = _Type()

    def add(self, piece: bytes) -> None:
        """Store the next piece, which has at most `PIECE` bytes.

        :raises TooLarge: if the file exceeds its limit
        """
        if self.size + len(piece) > self._most:
            raise TooLarge
        with self._database.writing() as connection:
            if not files.put(connection, self.id, self._pieces, piece, now=self._database.now()):
                raise UnknownFile("")
        self.size += len(piece)
        self._pieces += 1
        self._hash.update(piece)
        self._type.add(piece)

    def complete(self) -> StoredFile:
        stored = StoredFile(self.id, self.size, self._hash.hexdigest(), self._type.name())
        with self._database.writing() as connection:
            values = {name: value for name, value in asdict(stored).items() if name != "id"}
            if not files.complete(connection, self.id, now=self._database.now(), **values):
                raise UnknownFile("")
        return stored


class _Type:
    """Finds a file's type from its content alone, because anybody can write anything into a name."""

    def __init__(self) -> None:
        self._head = b""
        self._decoder: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()

    def add(self, piece: bytes) -> None:
        self._head = self._head or piece[:16]
        self._decode(piece)

    def name(self) -> str:
        for signature, name in SIGNATURES.items():
            if self._head.startswith(signature):
                return name
        if self._head.startswith(b"RIFF") and self._head[8:12] == b"WEBP":
            return "image/webp"
        self._decode(b"", is_last=True)
        return TEXT if self._decoder else OTHER

    def _decode(self, piece: bytes, *, is_last: bool = False) -> None:
        if self._decoder is None:
            return
        try:
            self._decoder.decode(piece, is_last)
        except UnicodeDecodeError:
            self._decoder = None
        else:
            if b"\0" in piece:
                self._decoder = None


def stored(inputs: Collection[InputFile]) -> list[dict[str, Any]] | None:
    """Return an execution's files in their stored form."""
    return [asdict(each) for each in inputs] or None


def hashes(inputs: Iterable[Any]) -> dict[str, str]:
    """Return what makes the files of two executions the same, apart from those in the inputs."""
    every = [each if isinstance(each, InputFile) else InputFile(**each) for each in inputs]
    return {each.name: each.sha256 for each in every if not each.in_inputs}


def read(database: Database, file: InputFile, *, cancelled: Cancellation | None = None) -> Iterator[bytes]:
    """Yield a file's pieces; no connection is held meanwhile.

    :param cancelled: ends the wait for a database that is unavailable; None waits for none
    """

    def piece(number: int) -> bytes | None:
        with database.reading() as connection:
            return files.piece(connection, file.id, number)

    for number in range(-(-file.size // PIECE)):
        wanted = partial(piece, number)
        data = wanted() if cancelled is None else retrying.until_available(wanted, cancelled)[0]
        if data is None:
            raise FileGone(f"the file {file.name!r} is gone")
        yield data
