"""Writes times as text: ISO 8601 in UTC, which `datetime.fromisoformat` reads in every Python version."""

from __future__ import annotations

from datetime import datetime, timezone


def iso(moment: float, precision: str = "auto") -> str:
    """Return a time given in seconds since 1970.

    :param precision: see `timespec` of `datetime.isoformat`
    """
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec=precision)
