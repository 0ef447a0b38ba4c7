"""Removes what the inbox has stored too long, once an hour in each API server; two at once do no harm."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime

BETWEEN_TWO_SWEEPS = 3600.0  # seconds

log = logging.getLogger(__name__)


def start() -> None:
    """Sweep in the background until the process ends."""
    threading.Thread(target=_sweep_for_ever, name="crew-inbox-cleaning", daemon=True).start()


def _sweep_for_ever() -> None:
    pause = threading.Event()
    while not pause.wait(BETWEEN_TWO_SWEEPS):
        try:
            sweep(datetime.now(UTC))
        except Exception:
            log.warning(
                "What the inbox stored too long could not be removed; the next try is in an hour", exc_info=True
            )


def sweep(now: datetime) -> int:
    """Remove what belongs to DAG runs that are over, and questions of Flows whose time is over."""
    from airflow_crew_provider.compat import flow_store
    from airflow_crew_provider.inbox import store

    return store.sweep(now) + flow_store.sweep(now)
