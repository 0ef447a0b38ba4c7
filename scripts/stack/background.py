"""Runs work in a thread alongside a test, which fails if the work does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class BackgroundWork:
    """Runs ``work`` in a thread during a ``with`` block; an error in it is raised at the end of the block.

    ``work`` must return soon after ``over`` is set.
    """

    stop_timeout = 120.0

    def __init__(self) -> None:
        self.over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def work(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self._thread.join(self.stop_timeout)
        if self._error:
            raise self._error
