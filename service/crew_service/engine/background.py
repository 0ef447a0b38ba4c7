"""A step that repeats in a thread of its own. Trouble with the database makes it wait, and is logged elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from crew_service.storage.availability import DatabaseUnavailable

log = logging.getLogger(__name__)

UNAVAILABLE = 1.0  # seconds between two tries while the database cannot be used
LONGEST = 60.0  # seconds between two tries of a step that fails, each of which is logged


class Background:
    """`step` runs every `pause` seconds, and at once after `wake`."""

    def __init__(self, name: str, step: Callable[[], None], *, pause: float) -> None:
        self._step = step
        self._pause = pause
        self._failures = 0
        self._done_at = time.monotonic()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def seconds_behind(self) -> float:
        """Since the step last ended, well or not: a thread that hangs or is gone falls behind."""
        return time.monotonic() - self._done_at

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            pause = self._once()
            self._done_at = time.monotonic()
            if pause > self._pause:
                self._stopping.wait(pause)
            else:
                self._wake.wait(pause)
                self._wake.clear()

    def _once(self) -> float:
        """Run the step; returns how long to wait before the next."""
        try:
            self._step()
            self._failures = 0
            return self._pause
        except DatabaseUnavailable:
            return max(UNAVAILABLE, self._pause)
        except Exception:
            self._failures += 1
            log.exception("%s failed; it is tried again", self._thread.name)
            return min(LONGEST, max(self._pause, 2.0**self._failures))
