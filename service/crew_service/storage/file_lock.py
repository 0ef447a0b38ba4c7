"""One service per SQLite file: a second one would run the same executions.

By `flock`, which a kill releases; a library for lock files adds systems on which the service does not run.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class AlreadyServed(Exception):
    """Another process serves this database."""


@contextmanager
def held(file: Path, *, named: str) -> Iterator[None]:
    """Hold the database for the block. `file` is its real path, so that no second name leads around the lock."""
    with Path(f"{file}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = f"The database {named!r} is in use by another crew service; several share one on PostgreSQL."
            raise AlreadyServed(text) from None
        yield
