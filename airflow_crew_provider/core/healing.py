"""Which failures of a status request may pass by themselves."""

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


def may_heal(error: CrewError) -> bool:
    """Whether asking again later may help."""
    if isinstance(error, CrewConnectionError):
        return not error.permanent
    if isinstance(error, CrewApiError) and error.status_code in (408, 425):
        return True
    return isinstance(error, CrewServerError | CrewRateLimited | CrewProtocolError | CrewOutcomeUnknown)
