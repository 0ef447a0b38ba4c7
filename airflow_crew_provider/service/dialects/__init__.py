"""The two ways in which the service speaks: as specified, and as live deployments do."""

from __future__ import annotations

from .base import Dialect
from .live import LiveDialect
from .spec import SpecDialect

DIALECTS: dict[str, type[Dialect]] = {"spec": SpecDialect, "live": LiveDialect}

__all__ = ["DIALECTS", "Dialect"]
