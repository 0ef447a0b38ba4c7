"""The two dialects that the service speaks: the specification's, and that of live deployments."""

from __future__ import annotations

from airflow_crew_provider.service.http.dialects.base import Dialect
from airflow_crew_provider.service.http.dialects.live import LiveDialect
from airflow_crew_provider.service.http.dialects.spec import SpecDialect

DIALECTS: dict[str, type[Dialect]] = {"spec": SpecDialect, "live": LiveDialect}

__all__ = ["DIALECTS", "Dialect"]
