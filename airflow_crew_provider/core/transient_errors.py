"""Which failures of a status request are transient."""

from __future__ import annotations

from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewConnectionError,
    CrewError,
    CrewOutcomeUnknown,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
)


def is_transient(error: CrewError) -> bool:
    """Return whether a later request may succeed."""
    if isinstance(error, CrewConnectionError):
        return not error.permanent
    if isinstance(error, CrewApiError) and error.status_code in (408, 425):
        return True
    return isinstance(error, CrewServerError | CrewRateLimited | CrewProtocolError | CrewOutcomeUnknown)
