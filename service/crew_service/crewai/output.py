"""Handles printed output: stores it with the execution or, if the crew is only being loaded, logs it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

AT_ONCE = 64 * 1024  # bytes per read
MOST_AT_ONCE = 16 * AT_ONCE  # bytes read in one go, so that `settle` returns even if something keeps printing
LONGEST_LOADING = 256 * 1024  # bytes of output logged while a crew loads
LONGEST_LINE = 2_000  # bytes


class Output:
    """Reads, in its own thread, the pipe that a crew's process prints to, so that printing never blocks the crew."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._take = descriptor, take
        self._reading = threading.Lock()
        self._is_open = True  # until all write ends of the pipe are closed
        threading.Thread(target=self._follow, name="crew-output", daemon=True).start()

    def settle(self) -> None:
        """Read everything printed so far."""
        with self._reading:
            self._drain()

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while self._is_open:
            poll.poll()
            with self._reading:
                self._drain()
        os.close(self._descriptor)

    def _drain(self) -> None:
        read = 0
        with contextlib.suppress(BlockingIOError):
            while self._is_open and read < MOST_AT_ONCE:
                data = os.read(self._descriptor, AT_ONCE)
                read += len(data)
                self._is_open = bool(data)
                self._take(data)


class LoadingLog:
    """Logs the first lines that a crew prints while it loads."""

    def __init__(self) -> None:
        self._left = LONGEST_LOADING
        self._begun = b""

    def __call__(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data[: self._left]).split(b"\n")
        self._left = max(0, self._left - len(data))
        if len(self._begun) > LONGEST_LINE:
            lines, self._begun = [*lines, self._begun], b""
        for line in lines:
            if text := line[:LONGEST_LINE].decode(errors="replace").rstrip():
                log.info("%s", text)
