"""Airflow's web server: the address at which browsers reach it, and the applications that plugins add to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import conf

from airflow_crew_provider.compat.version import RELEASE


def airflow_url() -> str | None:
    """Return `[api] base_url` if it is set and contains no credential; None on Airflow 2, whose paths differ."""
    url: str | None = conf.get("api", "base_url", fallback=None) if RELEASE >= (3, 0) else None
    try:
        parts = urlsplit(url or "")
    except ValueError:
        return None
    is_address = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    return url.rstrip("/") if url and is_address else None


class LazyApp:
    """An ASGI application that builds the real one when it is first called, because every process loads plugins."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request to the application."""
        if self._app is None:
            self._app = self._build()
        await self._app(scope, receive, send)
