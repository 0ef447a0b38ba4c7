"""What a crew prints goes to the service's log, a bounded amount of it: a flood is read and thrown away."""

from __future__ import annotations

import logging
import threading
from typing import BinaryIO

log = logging.getLogger(__name__)

LONGEST_LINE = 2_000  # bytes
MOST = 256 * 1024  # bytes of one segment


def follow(output: BinaryIO, execution_id: str | None) -> None:
    """Read `output` to its end in a thread of its own, so that the crew never waits for a reader."""
    extra = {"execution_id": execution_id} if execution_id else {}
    threading.Thread(target=_copy, args=(output, extra), name="crew-output", daemon=True).start()


def _copy(output: BinaryIO, extra: dict[str, str]) -> None:
    left, dropped = MOST, 0
    with output:
        while line := output.readline(LONGEST_LINE):
            if left <= 0:
                dropped += len(line)
                continue
            left -= len(line)
            text = line.decode(errors="replace").rstrip()
            if text:
                log.info("%s", text, extra=extra)
    if dropped:
        log.warning("%d more bytes of output were dropped", dropped, extra=extra)
