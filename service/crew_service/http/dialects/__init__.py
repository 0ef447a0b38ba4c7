"""The service's two dialects: that of the specification and that of live deployments."""

from __future__ import annotations

from crew_service.http.dialects.base import Dialect
from crew_service.http.dialects.live import LiveDialect
from crew_service.http.dialects.spec import SpecDialect

DIALECTS: dict[str, type[Dialect]] = {"spec": SpecDialect, "live": LiveDialect}

__all__ = ["DIALECTS", "Dialect"]
