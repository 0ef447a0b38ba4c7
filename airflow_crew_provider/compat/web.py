"""The address at which browsers reach this Airflow."""

from __future__ import annotations

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
