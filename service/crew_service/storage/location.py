"""Where a database is: what `--db` names, as a URL of SQLAlchemy and, for SQLite, as the one real path of the file."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from sqlalchemy.engine import URL, make_url

POSTGRESQL_DRIVERS = ("psycopg", "psycopg2")  # the first that is installed serves a URL that names none


class NoLocation(ValueError):
    """The name cannot be that of a database which several connections share."""


class InMemory(NoLocation):
    """Each connection would get a database of its own, gone with the service."""


def url_of(database: str) -> URL:
    """A file name, or any URL of SQLAlchemy."""
    try:
        url = make_url(database) if "://" in database else URL.create("sqlite", database=database)
    except ValueError:
        raise NoLocation("its port is not a number") from None
    if url.drivername in ("postgresql", "postgres"):
        driver = next((name for name in POSTGRESQL_DRIVERS if find_spec(name)), POSTGRESQL_DRIVERS[0])
        return url.set(drivername=f"postgresql+{driver}")
    return url


def shown(database: str) -> str:
    """Return what may be told of a database: its name without a password."""
    text = re.sub("(?<=://)([^/@:]*):.*@", r"\1:***@", database)
    return re.sub("(?<=password=)[^&]*", "***", text)


def file_of(url: URL) -> Path | None:
    """The real path of a SQLite file, however it is named; None for other databases."""
    if url.get_backend_name() != "sqlite":
        return None
    name = url.database or ""
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    if not name or ":memory:" in name or url.query.get("mode") == "memory":
        raise InMemory
    path = Path(name).expanduser().resolve()
    if path.is_file() and path.stat().st_nlink > 1:
        raise NoLocation("the file has several names (hard links), and SQLite would keep a log beside each")
    return path


def sqlite_url(path: Path) -> URL:
    """Open the file, and never make an empty one in its place when it was moved away."""
    query = {"mode": "rw", "uri": "true"}
    return URL.create("sqlite", database=f"file:{quote(str(path))}", query=query)
