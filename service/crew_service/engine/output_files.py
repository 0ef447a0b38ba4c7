"""Files that crews write: stored as they appear, with versions, and laid out again for each later process.

The crew's process sends what has changed in the execution's folder before it reports the end of a tool call, task or
method, in pieces on the same connection: so a file is stored before the end that it belongs to. The bytes arrive as an
unused upload; only the last write, which the segment's claim fences, makes them a file of the execution.

A file of a task that a person must approve is a draft (``is_draft``): of no round until the person is asked, then of
that round; the approval settles those of the last round, and those of a rejected round stay what they are.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy.engine import Connection, Row

from crew_service.engine import paths
from crew_service.engine.crew import FilePiece, InputFile
from crew_service.engine.files import PIECE, Files, OwnerFull, StoredFile, StoreFull, TooLarge, Upload
from crew_service.engine.printed import shortened
from crew_service.storage import files, questions
from crew_service.times import iso

MOST_FILES = 200  # of an execution, without their earlier versions
MOST_VERSIONS = 5  # of a file
LONGEST_NAME = 1_000  # characters
LISTED = 50  # in an execution's details
DIRECTIONS: tuple[Literal["in"], Literal["out"]] = ("in", "out")
IN, OUT = DIRECTIONS


def is_name(name: str) -> bool:
    """Return whether a name is a relative path that can be laid out and shown."""
    parts = name.split("/")
    return name.isprintable() and len(name) <= LONGEST_NAME and not {"", ".", ".."} & set(parts) and "\\" not in name


def shown(name: str) -> str:
    """Return a name to print: one that is not valid may have line breaks, or bytes that are not UTF-8."""
    return shortened("".join(char if char.isprintable() else "\ufffd" for char in name), LONGEST_NAME)


class OutputFiles:
    """The files that one segment's crew sends."""

    def __init__(self, store: Files, execution_id: str) -> None:
        self._store = store
        self._execution_id = execution_id
        self.gated: set[str] = set()  # the tasks that a person must approve
        self._uploads: dict[str, Upload | None] = {}  # by name; None for a file that is not stored
        self._received: FilePiece | None = None
        self._buffer = bytearray()  # of the file that is arriving, whose pieces are of another size than stored ones

    def receive(self, piece: FilePiece) -> str | None:
        """Store the next piece of a file; return why the file is not stored, as a clause, if that is known now."""
        problem = None
        if piece.name not in self._uploads:
            begun = self._begin(piece)  # if the database is unavailable, the piece is received again
            problem, upload = (begun, None) if isinstance(begun, str) else (None, begun)
            self._uploads[piece.name] = upload
        upload = self._uploads[piece.name]
        if piece.data is None:
            self._drop(piece.name)
        elif upload:
            if piece is not self._received:  # else the database was unavailable
                self._received = piece
                self._buffer += base64.b64decode(piece.data)
            try:
                while len(self._buffer) >= PIECE or (piece.is_last and self._buffer):
                    upload.add(bytes(self._buffer[:PIECE]))
                    del self._buffer[:PIECE]
            except TooLarge:
                problem = f"a file may have at most {self._store.limits.of_file} bytes"
                self._drop(piece.name)
        return problem

    def _begin(self, piece: FilePiece) -> Upload | str:
        """Return a new upload, or why the file is not stored."""
        self._buffer.clear()
        if not is_name(piece.name):
            return "its name is not valid"
        if piece.size > self._store.limits.of_file:
            return f"a file may have at most {self._store.limits.of_file} bytes"
        with self._store.reading() as connection:
            known = files.outputs(connection, self._execution_id)
        if len({each.name for each in known} | {piece.name}) > MOST_FILES:
            return f"an execution may have at most {MOST_FILES} files"
        most = self._store.limits.of_execution
        if _giving_way(known, piece.name, piece.size, most=most, is_draft=piece.task_id in self.gated) is None:
            return f"the files of an execution may have at most {most} bytes"
        try:
            return self._store.begin(files.OF_EXECUTION + self._execution_id, piece.size)
        except OwnerFull:
            return "earlier uploads of this execution that did not end still take its room, for up to an hour"
        except StoreFull:
            return "this service stores no more files"

    def completed(self, piece: FilePiece) -> Completion | None:
        """Return the write that makes a file of the pieces; None if the file is not stored."""
        upload = self._uploads[piece.name]
        stored = upload.complete() if upload else None
        del self._uploads[piece.name]
        if stored is None:
            return None
        values = {"task_id": piece.task_id or None, "is_draft": piece.task_id in self.gated}
        return Completion(self._execution_id, stored, piece.name, values, self._store.limits.of_execution)

    def _drop(self, name: str) -> None:
        self._buffer.clear()
        upload, self._uploads[name] = self._uploads[name], None
        if upload:
            self._store.discard([upload.id])


@dataclass(frozen=True)
class Completion:
    """The write that gives a complete file to its execution.

    :param values: of the columns
    :param most: bytes of an execution's files
    """

    execution_id: str
    stored: StoredFile
    name: str
    values: dict[str, Any]
    most: int

    def __call__(self, connection: Connection, now: float) -> None:
        known = files.versions(connection, self.execution_id, self.name)
        if known and known[0].sha256 == self.stored.sha256 and not _is_rejected(known[0]):
            files.delete_ids(connection, [self.stored.id])
            return
        version = known[0].version + 1 if known else 1
        values = {**self.values, "name": self.name, "version": version, "changed_at": now}
        rows, is_draft = files.outputs(connection, self.execution_id), self.values["is_draft"]
        gone = _giving_way(rows, self.name, self.stored.size, most=self.most, is_draft=is_draft)
        files.change(connection, [self.stored.id], execution_id=self.execution_id, **values)
        files.delete_ids(connection, [each.id for each in gone or ()])


def _giving_way(rows: Iterable[Row[Any]], name: str, size: int, *, most: int, is_draft: bool) -> list[Row[Any]] | None:
    """Return the versions of a file that give way to a new one; None if there is no room for that even so.

    A draft, which may be rejected, leaves the newest final version.

    :param most: bytes of an execution's files
    """
    others, mine = 0, []
    for row in rows:
        if row.name == name:
            mine.append(row)
        else:
            others += row.size
    mine.sort(key=lambda row: int(row.version), reverse=True)
    needed = next((row for row in mine if not row.is_draft), None) if is_draft else None
    room, count = most - others - size - (needed.size if needed else 0), 2 if needed else 1
    if room < 0:
        return None
    gone: list[Row[Any]] = []
    for row in mine:
        if row is needed:
            continue
        if gone or count == MOST_VERSIONS or row.size > room:
            gone.append(row)
        else:
            room, count = room - row.size, count + 1
    return gone


def _is_rejected(row: Row[Any]) -> bool:
    return bool(row.is_draft and row.round is not None)


def show(connection: Connection, execution_id: str, task_id: str, number: int) -> None:
    """Make a task's new files drafts of the round in which a person is asked about it."""
    rows = files.outputs(connection, execution_id)
    ids = [row.id for row in rows if row.task_id == task_id and row.round is None]
    files.change(connection, ids, round=number, is_draft=True)


def settle(connection: Connection, execution_id: str, task_id: str | None = None) -> None:
    """Make drafts the execution's files: those of approved rounds, and those of a finished task that asked nobody."""
    drafts = [row for row in files.outputs(connection, execution_id) if row.is_draft]
    approved = questions.approved(connection, execution_id) if drafts else ()
    settled = [
        row.id for row in drafts if row.round in approved or (task_id and (row.round, row.task_id) == (None, task_id))
    ]
    files.change(connection, settled, is_draft=False)


def newest(connection: Connection, execution_id: str) -> list[InputFile]:
    """Return the newest version of each file, to be laid out."""
    return [_stored(row).of_input(row.name) for row in _newest(files.outputs(connection, execution_id))]


def finished(connection: Connection, execution_id: str) -> list[dict[str, Any]]:
    """Return the newest final version of each file, as webhooks name them."""
    fields = ("name", "version", "size", "sha256", "content_type", "task_id")
    final = (row for row in files.outputs(connection, execution_id) if not row.is_draft)
    return [{name: getattr(row, name) for name in fields} for row in _newest(final)]


def _newest(rows: Iterable[Row[Any]]) -> list[Row[Any]]:
    """Return the newest version of each file; of a file and a folder with one name, only the newer one counts."""
    by_name: dict[str, Row[Any]] = {}
    for row in sorted(rows, key=lambda row: int(row.version)):
        by_name[row.name] = row
    finals: dict[str, Row[Any]] = {}
    folders: set[str] = set()
    for row in sorted(by_name.values(), key=lambda row: float(row.changed_at), reverse=True):
        above = {row.name[:place] for place, letter in enumerate(row.name) if letter == "/"}
        if row.name not in folders and not above & finals.keys():
            finals[row.name] = row
            folders |= above
    return [row for row in by_name.values() if row.name in finals]


@dataclass(frozen=True)
class ListedFile:
    """A file of an execution, as the API lists it.

    :param execution_id: of that execution
    :param stored: its content
    :param created_at: in epoch seconds
    :param round: in which a person was shown it; None if nobody was
    """

    execution_id: str
    name: str
    version: int
    stored: StoredFile
    task_id: str | None
    created_at: float
    direction: Literal["in", "out"]
    round: int | None = None
    is_draft: bool = False

    def as_dict(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self.stored).items() if name != "id"}
        return {
            "name": self.name,
            "version": self.version,
            **fields,
            "task_id": self.task_id,
            "created_at": iso(self.created_at),
            "direction": self.direction,
            "round": self.round,
            "state": "draft" if self.is_draft else "final",
            "view": paths.file(self.execution_id, self.name, self.version, self.direction),
        }


def listed(connection: Connection, execution_id: str) -> list[ListedFile] | None:
    """Return all files of an execution, the crew's newest first, then its caller's; None if it is unknown."""
    inputs = files.given(connection, execution_id)
    if inputs is None:
        return None
    out = [
        ListedFile(
            *(execution_id, row.name, row.version, _stored(row), row.task_id, row.changed_at, OUT, row.round),
            bool(row.is_draft),
        )
        for row in files.outputs(connection, execution_id)
    ]
    into, since = inputs
    return [*out, *(ListedFile(execution_id, each["name"], 1, _of_input(each), None, since, IN) for each in into)]


def shown_with(listed: Iterable[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return the listed files that belong to the question of this number: the newest, but none of a rejected round."""
    mine = [each for each in listed if each["direction"] == OUT]
    mine = [each for each in mine if each["state"] == "final" or each["round"] in (None, number)]
    newest = {each["name"]: each for each in sorted(mine, key=lambda each: int(each["version"]))}
    return [each for each in mine if newest[each["name"]] is each]


def _stored(row: Row[Any]) -> StoredFile:
    return StoredFile(row.id, row.size, row.sha256, row.content_type)


def _of_input(file: Mapping[str, Any]) -> StoredFile:
    return StoredFile(*(file[name] for name in ("id", "size", "sha256", "content_type")))


def chosen(listed_files: Iterable[ListedFile], name: str, version: int | None, direction: str) -> ListedFile | None:
    """Return a file by its name and version, by default the newest; None if there is none."""
    mine = [each for each in listed_files if (each.name, each.direction) == (name, direction)]
    mine = [each for each in mine if version in (None, each.version)]
    return max(mine, key=lambda each: each.version, default=None)
