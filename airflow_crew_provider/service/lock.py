"""One service per database file: a second one would run the same executions."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class AlreadyServed(Exception):
    """Another process serves this database."""


@contextmanager
def held(database: str) -> Iterator[None]:
    """Hold the database for the block; a kill releases it too."""
    with Path(f"{database}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AlreadyServed(f"The database {database!r} is in use by another crew service.") from None
        yield
