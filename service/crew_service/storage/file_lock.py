"""Allows one service per SQLite file: a second one would run the same executions.

Uses `flock`, because its lock is released when the process is killed; a lock-file library would only help on systems
where the service cannot run.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class AlreadyServed(Exception):
    """Another process is serving this database."""


@contextmanager
def held(file: Path, *, named: str) -> Iterator[None]:
    """Lock the database within the block. `file` is its real path, so that no other name bypasses the lock."""
    with Path(f"{file}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = f"The database {named!r} is in use by another crew service; several share one on PostgreSQL."
            raise AlreadyServed(text) from None
        yield


def is_held(file: Path) -> bool:
    """Return whether a service holds the lock; do not create its file, which another user's service could not open."""
    try:
        with Path(f"{file}.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
