"""The machine's resources: how many files this process may use for each purpose, and how exhaustion is detected.

On exhaustion, callers wait or refuse new work. Nothing fails, because running work will release its resources.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import resource

CONNECTIONS = 10_000  # incoming, if nothing else limits them
CONNECTIONS_OUT = 256
RESERVED_FILES = 256  # for the database and crews
PAUSE = 2.0  # seconds before new work starts again
NONE_LEFT = "The machine is out of files, threads or memory; try again later."
LARGE_BLOCK = 1024 * 1024  # bytes; memory blocks this large return to the system as soon as they are freed
M_MMAP_THRESHOLD = -3  # from malloc.h
ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT})


def connections_in(most: int | None) -> int:
    """Return how many client connections may be open at once."""
    files = _files()
    if files is None:
        return min(most or CONNECTIONS, CONNECTIONS)
    return min(most or CONNECTIONS, max(files - connections_out() - RESERVED_FILES, files // 2))


def connections_out() -> int:
    """Return how many webhooks may be in flight at once."""
    files = _files()
    return CONNECTIONS_OUT if files is None else max(1, min(CONNECTIONS_OUT, files // 4))


def _files() -> int | None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if files == resource.RLIM_INFINITY else files


def return_freed_memory() -> None:
    """Make glibc always return large blocks to the system; by default, it keeps blocks of a size once one is freed."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def is_trouble(error: BaseException) -> bool:
    """Return whether the machine is out of files, threads or memory. Databases raise `DatabaseUnavailable` for this."""
    if isinstance(error, OSError):
        return error.errno in ERRORS or isinstance(error, BlockingIOError)  # the latter from a fork
    if isinstance(error, RuntimeError):
        return "start new thread" in str(error)
    return isinstance(error, MemoryError)
