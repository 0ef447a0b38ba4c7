"""The plugin through which Airflow 3's API server serves the inbox. Airflow 2 loads it but does not use it.

Every Airflow process loads plugins, so nothing heavy is imported before the first webhook arrives. Each API server
removes expired records once an hour; it is safe for two of them to do so at the same time.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

from airflow_crew_provider.compat.web import LazyApp

URL_PREFIX = "/crew-inbox"
BETWEEN_TWO_SWEEPS = 3600.0  # seconds

log = logging.getLogger(__name__)


def _app() -> Any:
    from airflow_crew_provider.inbox import app, assets, flows

    return app.inbox_app([app.router, assets.router, flows.router])


def with_cleaning(app: Any) -> Any:
    """Start a thread that removes expired records, and return the application unchanged.

    Airflow calls this once in each API server, like any middleware.
    """
    threading.Thread(target=_sweep_for_ever, name="crew-inbox-cleaning", daemon=True).start()
    return app


def _sweep_for_ever() -> None:
    pause = threading.Event()
    while not pause.wait(BETWEEN_TWO_SWEEPS):
        try:
            from airflow_crew_provider.inbox import store

            store.sweep(datetime.now(UTC))
        except Exception:
            log.warning("Expired inbox records could not be removed; the next attempt is in an hour", exc_info=True)


class CrewInboxPlugin(AirflowPlugin):
    """Receives webhooks from the crew service."""

    name = "crew_inbox"
    fastapi_apps = [{"app": LazyApp(_app), "url_prefix": URL_PREFIX, "name": "Crew inbox"}]  # noqa: RUF012 - as declared
    fastapi_root_middlewares = [{"middleware": with_cleaning, "name": "Crew inbox"}]  # noqa: RUF012 - as declared
