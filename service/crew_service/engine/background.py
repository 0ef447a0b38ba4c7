"""Repeats a step in its own thread. It pauses while the database is unavailable; other code logs the outage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from crew_service.engine.retrying import growing
from crew_service.storage.availability import DatabaseUnavailable

log = logging.getLogger(__name__)

UNAVAILABLE = 1.0  # seconds between attempts while the database is unavailable
LONGEST = 30.0  # maximum seconds between attempts at a failing step; each failure is logged
BEHIND = 60.0  # seconds without a finished step before a thread counts as hanging; a step normally takes only a few


class Background:
    """Runs `step` every `pause` seconds, and immediately after `wake`. Call `watch` regularly (see `Health`).

    :param behind: seconds after which an unfinished step counts as hanging
    :param longest: the maximum number of seconds between attempts at a failing step
    """

    def __init__(
        self, name: str, step: Callable[[], None], *, pause: float, behind: float = BEHIND, longest: float = LONGEST
    ) -> None:
        self.name = name
        self._step = step
        self._pause = pause
        self._behind = behind
        self._longest = longest
        self._failures = 0
        self._done_at = time.monotonic()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_wanted = False
        self._could_start = True

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def is_gone(self) -> bool:
        """Return whether the thread is needed but has been missing for too long."""
        return self._is_missing and time.monotonic() - self._done_at > self._behind

    @property
    def problem(self) -> str | None:
        """Return the problem as a sentence; None if all is well."""
        if self._is_missing:
            return f"The thread {self.name!r} has ended; it is being restarted."
        if self._is_wanted and time.monotonic() - self._done_at > self._behind:
            return f"The thread {self.name!r} is not responding; restart the service."
        return None

    @property
    def _is_missing(self) -> bool:
        is_alive = self._thread is not None and self._thread.is_alive()
        return self._is_wanted and not is_alive and not self.is_stopping

    def start(self) -> None:
        self._is_wanted = True
        self._done_at = time.monotonic()
        self.watch()

    def watch(self) -> None:
        """Start the thread if it is not running; if it cannot start, the next call tries again."""
        if not self._is_missing:
            return
        if self._thread is not None:
            log.error("the thread %r has ended; it is being restarted", self.name)
        thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if self._could_start:
                log.error("the thread %r cannot start; trying again (%s)", self.name, error)
            self._could_start = False
        else:
            self._thread, self._could_start = thread, True

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread.is_alive():
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
        """Run the step; return how long to wait before the next one."""
        try:
            self._step()
            self._failures = 0
            return self._pause
        except DatabaseUnavailable:
            return max(UNAVAILABLE, self._pause)
        except Exception:
            self._failures += 1
            log.exception("%s failed; trying again", self.name)
            pause = growing(self._failures, first=1.0, factor=2.0, longest=self._longest)
            return min(self._longest, max(self._pause, pause))
