"""The location of a database: the SQLAlchemy URL for `--db` and, for SQLite, the file's one real path."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote, urlsplit

from sqlalchemy.engine import URL, make_url

CHUNK = 1024 * 1024  # bytes
POSTGRESQL_DRIVERS = ("psycopg", "psycopg2")  # the first installed one is used for a URL without a driver


class NoLocation(ValueError):
    """The name cannot refer to a database shared by several connections."""


class InMemory(NoLocation):
    """Each connection would get its own database, which would be lost when the service exits."""


def url_of(database: str) -> URL:
    """Return the URL for a file name or any SQLAlchemy URL."""
    try:
        url = make_url(database) if "://" in database else URL.create("sqlite", database=database)
    except ValueError:
        raise NoLocation("its port is not a number") from None
    if url.drivername in ("postgresql", "postgres"):
        # SQLAlchemy 1.4 does not know psycopg.
        known = [name for name in POSTGRESQL_DRIVERS if find_spec(f"sqlalchemy.dialects.postgresql.{name}")]
        driver = next(filter(find_spec, known), known[0])
        return url.set(drivername=f"postgresql+{driver}")
    return url


def shown(database: str) -> str:
    """Return a database's name without a password, for display."""
    text = re.sub("(?<=://)([^/@:]*):.*@", r"\1:***@", database)
    return re.sub("(?<=password=)[^&]*", "***", text)


def file_of(url: URL) -> Path | None:
    """Return the real path of a SQLite file, however it is named; None for other databases."""
    if url.get_backend_name() != "sqlite":
        return None
    name = url.database or ""
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    if not name or ":memory:" in name or url.query.get("mode") == "memory":
        raise InMemory
    path = Path(name).expanduser().resolve()
    if path.is_file() and path.stat().st_nlink > 1:
        raise NoLocation("the file has several names (hard links), and SQLite would keep a log next to each")
    return path


def is_complete(file: BinaryIO) -> bool:
    """Return whether a SQLite file has as many pages as its header says; a copy in progress does not.

    SQLite would take an empty file for a new database, and delete the write-ahead log next to it.
    """
    file.seek(0)
    header = file.read(32)
    if len(header) < 32 or not header.startswith(b"SQLite format 3\0"):
        return False
    page_size = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    return size(file) >= (65536 if page_size == 1 else page_size) * pages  # two bytes cannot hold 64 KiB


def size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def same_content(one: BinaryIO, other: BinaryIO) -> bool:
    if size(one) != size(other):
        return False
    one.seek(0)
    other.seek(0)
    while part := one.read(CHUNK):
        if part != other.read(CHUNK):
            return False
    return True


def sqlite_url(path: Path) -> URL:
    """Return a URL that opens the file, but never creates an empty one if it was moved away."""
    query = {"mode": "rw", "uri": "true"}
    return URL.create("sqlite", database=f"file:{quote(str(path))}", query=query)
